"""What proposed each token: said by token in results and streams, and counted by name."""

from itertools import chain, cycle, islice

import pytest

from foreword.draft.base import BaseDrafter, known_ids
from foreword.draft.cascade import CascadeDrafter
from foreword.engine.guided import guided_tree
from foreword.engine.stats import RequestStats
from foreword.sampling.grammar import Grammar
from foreword.sampling.grammar_matcher import GrammarCompiler
from foreword.sampling.params import SamplingParams
from foreword.tree.draft_tree import DraftTree
from foreword.tree.merge import merge
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import make_engine, plain_tokens, run
from tests.support.toy_llm import byte_tokenizer, toy_llm

DECODER = ToyDecoder()
PROMPT = [1, 2, 3]
PARAMS = SamplingParams(max_tokens=28, ignore_eos=True)


class Knowing(BaseDrafter):
    """Proposes the next two tokens of the answer, and a wrong one, where `knows` says so of the answer's length."""

    def __init__(self, name, answer, knows):
        self.name, self.answer, self.knows = name, answer, knows

    def propose(self, requests, plans):
        return [self._tree(request, plan) for request, plan in zip(requests, plans, strict=True)]

    def _tree(self, request, plan):
        known, num_new = known_ids(request, plan), len(request.token_ids) - request.prompt_len
        if not plan.num_nodes or not self.knows(num_new):
            return DraftTree.chain(known)
        right = self.answer[num_new : num_new + 2][: plan.depth]
        wrong = [(self.answer[num_new + 2] + 1) % 11] if plan.depth > 2 else []
        return DraftTree.chain(known, [*right, *wrong])


def even_and_odd(answer):
    return Knowing("even", answer, lambda n: n % 2 == 0), Knowing("odd", answer, lambda n: n % 2 == 1)


# Token 0 is prefill's. Then `odd` proposes tokens 1 and 2 and the target draws token 3; then it is the turn of `even`.
EXPECTED = list(islice(chain([None], cycle(["odd", "odd", None, "even", "even", None])), 28))


@pytest.mark.parametrize("is_merging", [False, True])
def test_each_token_names_the_drafter_of_a_cascade_that_proposed_it(is_merging):
    answer = plain_tokens(DECODER, PROMPT, PARAMS)
    cascade = CascadeDrafter(even_and_odd(answer), is_merging=is_merging)
    (request,) = run(make_engine(DECODER, cascade), [PROMPT], [PARAMS])
    assert request.new_ids == answer
    assert request.drafted_by == EXPECTED
    stats = request.stats
    assert stats.accepted_tokens_by == {name: EXPECTED.count(name) for name in ("odd", "even")}
    assert sum(stats.drafted_tokens_by.values()) == stats.drafted_tokens > stats.accepted_tokens


def test_a_single_drafter_is_named_and_what_a_stop_condition_cuts_off_is_not_counted():
    answer = plain_tokens(DECODER, PROMPT, PARAMS)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    (request,) = run(make_engine(DECODER, Knowing("odd", answer, lambda n: True)), [PROMPT], [params])
    assert request.new_ids == answer[:3]
    assert len(request.drafted_by) == 3
    assert request.drafted_by[:2] == [None, "odd"]
    assert request.stats.accepted_tokens == sum(request.stats.accepted_tokens_by.values())


def test_results_and_streams_say_it_and_streams_count_on_the_way():
    tokenizer = byte_tokenizer("hello")
    decoder = ToyDecoder(vocab_size=tokenizer.vocab_size)
    answer = plain_tokens(decoder, PROMPT, PARAMS)
    (result,) = toy_llm(decoder, tokenizer, CascadeDrafter(even_and_odd(answer))).generate([PROMPT], PARAMS)
    assert result.token_ids == answer
    assert set(result.drafted_by) == {"even", "odd", None}
    pieces = list(toy_llm(decoder, tokenizer, CascadeDrafter(even_and_odd(answer))).stream(PROMPT, PARAMS))
    assert [name for piece in pieces for name in piece.drafted_by] == result.drafted_by
    assert all(len(piece.drafted_by) == len(piece.token_ids) for piece in pieces)
    told = 0
    for piece in pieces:
        told += len(piece.token_ids)
        assert piece.stats.new_tokens == told
    assert pieces[-1].stats.accepted_tokens_by == result.stats.accepted_tokens_by


def test_a_copy_of_the_counts_stays_as_it_is():
    stats = RequestStats()
    stats.record_step(3, 3, 1)
    stats.record_sources(["a", "a", "b"], ["a"])
    copied = stats.copy()
    stats.record_step(4, 4, 4)
    stats.record_sources(["c"] * 4, ["c"] * 4)
    assert (copied.drafted_tokens, copied.drafted_at_depth, copied.accepted_at_depth) == (3, [1, 1, 1], [1, 0, 0])
    assert (copied.drafted_tokens_by, copied.accepted_tokens_by) == ({"a": 2, "b": 1}, {"a": 1})


def test_plain_decoding_names_nobody():
    (request,) = run(make_engine(DECODER), [PROMPT], [PARAMS])
    assert request.drafted_by == [None] * 28
    assert request.stats.drafted_tokens_by == {}


def test_trees_keep_the_names_when_merged_cut_and_pruned():
    first, second = DraftTree.chain([9], [1, 2]).named("first"), DraftTree.chain([9], [1, 3, 4]).named("second")
    assert first.named("other") is first
    merged = merge([first, second])
    merged.check()
    assert merged.sources == ["", "first", "first", "second", "second"]
    assert merged.subset([0, 1, 3]).sources == ["", "first", "second"]
    assert list(merged.pruned(1).sources or ()) == ["", "first"]
    assert merge([DraftTree.chain([9], [1]), DraftTree.chain([9], [2])]).sources is None


def test_tokens_that_a_grammar_forces_are_named_so():
    pytest.importorskip("llguidance")
    tokenizer = byte_tokenizer()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, [tokenizer.eos_token_id])
    grammar = compiler.compile(Grammar.regex("(a|b)xyz"))
    (a,) = tokenizer.encode("a")
    tree = guided_tree(DraftTree.chain([7], [a]).named("suffix"), grammar, [], 8)
    tree.check()
    assert list(tree.sources or ())[1:5] == ["suffix", "grammar", "grammar", "grammar"]
    unnamed = guided_tree(DraftTree.chain([7], [a]), grammar, [], 8)
    assert list(unnamed.sources or ())[1:5] == ["", "grammar", "grammar", "grammar"]
