"""Prompts that begin alike are read once, and the tokens are those of a model that knows nothing of it."""

import ast
import random
from pathlib import Path

import pytest

import foreword
from foreword.draft.base import BaseDrafter, DraftNeed
from foreword.engine.kv_budget import KVBudget, kv_budget
from foreword.engine.prefix_tree import BLOCK, PrefixTree
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams
from foreword.tree.shared_beginning import num_shared
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import plain_tokens
from tests.support.toy_llm import byte_tokenizer, toy_llm

pytestmark = pytest.mark.usefixtures("without_shape_checks")
TOKENIZER = byte_tokenizer("hello")
DECODER = ToyDecoder(vocab_size=TOKENIZER.vocab_size)
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
LONG = [(i * i + 3 * i) % 200 for i in range(91)]


class Reading:
    """Counts the prompt tokens that a decoder reads."""

    def __init__(self, monkeypatch, llm):
        self.num_nodes, decoder = 0, llm.engine.parts.target.decoder
        inner = decoder.forward

        def forward(batch, *rest):
            self.num_nodes += batch.num_nodes
            return inner(batch, *rest)

        monkeypatch.setattr(decoder, "forward", forward)


def fresh_llm(drafter="none", **options):
    return toy_llm(ToyDecoder(vocab_size=TOKENIZER.vocab_size), TOKENIZER, drafter, **options)


def check(results, prompts, params):
    for result, prompt in zip(results, prompts, strict=True):
        assert result.token_ids == plain_tokens(DECODER, prompt, params)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("draws", [{}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_n_answers_read_their_prompt_once(batch_size, draws, monkeypatch):
    llm = fresh_llm(batch_size=batch_size)
    reading = Reading(monkeypatch, llm)
    params = SamplingParams(max_tokens=6, ignore_eos=True, n=8, seed=5, **draws)
    results = llm.generate([LONG], params)
    # The first token of each answer comes with the prompt's last, the others take a node each.
    assert reading.num_nodes == len(LONG) + 7 + 8 * 5
    assert [r.stats.cached_tokens for r in results] == [0, *[len(LONG) - 1] * 7]
    alone = fresh_llm(prefix_cache=False).generate([LONG], params)
    assert [r.token_ids for r in results] == [r.token_ids for r in alone]
    assert len({tuple(r.token_ids) for r in results}) == (1 if not draws else 8)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_two_prompts_that_differ_in_the_last_token(batch_size, monkeypatch):
    llm = fresh_llm(batch_size=batch_size)
    reading = Reading(monkeypatch, llm)
    prompts = [LONG, [*LONG[:-1], 199]]
    results = llm.generate(prompts, PARAMS)
    check(results, prompts, PARAMS)
    assert reading.num_nodes == 92 + 2 * 5
    assert [r.stats.cached_tokens for r in results] == [0, 90]


def test_a_system_prompt_is_shared_by_all_who_begin_with_it(monkeypatch):
    llm = fresh_llm(batch_size=4)
    reading = Reading(monkeypatch, llm)
    prompts = [[*LONG, *[i + 1] * (i + 2)] for i in range(6)]
    results = llm.generate(prompts, PARAMS)
    check(results, prompts, PARAMS)
    assert all(r.stats.cached_tokens == len(LONG) for r in results[1:])
    assert reading.num_nodes == len(LONG) + sum(i + 2 for i in range(6)) + 6 * 5


def test_who_shares_nothing_does_not_wait_for_who_does():
    llm = fresh_llm(batch_size=8)
    llm.engine.parts.controller.prefill_chunk = 4
    first, same, other = [llm._prepare([p], PARAMS, None)[0].request(0) for p in (LONG, LONG, LONG[::-1])]
    for request in (first, same, other):
        llm.engine.add(request)
    llm.engine.step()
    assert [r.slot >= 0 for r in (first, same, other)] == [True, False, True]
    llm.engine.abort(first)  # whom it waited for goes away
    llm.engine.step()
    assert same.slot >= 0
    while llm.engine.step():
        pass
    for request in (same, other):
        assert request.new_ids == plain_tokens(DECODER, request.token_ids[: request.prompt_len], PARAMS)


def test_asking_again_reads_one_token():
    llm = fresh_llm()
    for turn in range(3):
        (result,) = llm.generate([LONG], PARAMS)
        assert result.stats.cached_tokens == (len(LONG) - 1 if turn else 0)
        check([result], [LONG], PARAMS)
    assert len(llm.engine.memory.prefixes) == 1, "the same rows are kept once"


def test_a_conversation_goes_on_while_another_branches_off_its_beginning():
    llm = fresh_llm()
    (first,) = llm.generate([LONG], PARAMS)
    whole = [*LONG, *first.token_ids, 3]
    branch = [*LONG[:50], 8, 9]
    second, third = llm.generate([branch, whole], PARAMS)
    check([second, third], [branch, whole], PARAMS)
    assert (second.stats.cached_tokens, third.stats.cached_tokens) == (50, len(whole) - 2)
    counts = llm.snapshot()
    assert (counts.prefix_cache_queries, counts.prefix_cache_hits, llm.engine.memory.num_copied) == (3, 2, 1)
    assert counts.cached_tokens == 50 + len(whole) - 2
    assert counts.kv_cache_bytes >= counts.prefix_cache_bytes > 0


def test_the_region_used_longest_ago_leaves_first():
    llm = fresh_llm()
    prefixes = llm.engine.memory.prefixes
    prefixes.max_regions = 2
    a, b, c = ([i, *LONG] for i in (1, 2, 3))
    for prompt in (a, b, a, c):  # b was used longest ago
        llm.generate([prompt], PARAMS)
    assert len(prefixes) == llm.engine.parts.target.cache.num_open == 2
    assert [llm.generate([p], PARAMS)[0].stats.cached_tokens > 0 for p in (a, c, b)] == [True, True, False]
    assert prefixes.num_evicted == 2


def test_finished_regions_are_bounded_in_bytes():
    llm = fresh_llm(kv_cache_bytes=500)  # a byte a row
    for i in range(12):
        llm.generate([[i, *LONG]], PARAMS)
        assert llm.engine.parts.target.cache.num_bytes <= 500
    assert 2 <= len(llm.engine.memory.prefixes) <= 5


def test_prompt_logprobs_read_everything():
    llm = fresh_llm()
    llm.generate([LONG], PARAMS)
    (result,) = llm.generate([LONG], SamplingParams(max_tokens=2, prompt_logprobs=0))
    assert result.stats.cached_tokens == 0
    assert len(result.prompt_logprobs) == len(LONG)


class Learner(BaseDrafter):
    def __init__(self, need):
        self.need = need


@pytest.mark.parametrize(
    ("need", "shares"),
    [
        (DraftNeed(), True),
        (DraftNeed(top_k=2), True),
        (DraftNeed(hidden=True, can_miss=True), True),
        (DraftNeed(hidden=True), False),
        (DraftNeed(taps=(0,)), False),
    ],
    ids=repr,
)
def test_drafters_that_must_see_every_position_do(need, shares):
    llm = toy_llm(DECODER, TOKENIZER, Learner(need))
    assert (llm.engine.memory.budget.max_finished > 0) == shares


@pytest.mark.parametrize(("drafter", "shares"), [("ngram", True), ("recycling", False)])
def test_where_drafts_decide_what_comes_a_drafter_sees_what_it_would_see_alone(drafter, shares):
    llm = toy_llm(DECODER, TOKENIZER, drafter, verifier="rejection")
    assert (llm.engine.memory.budget.max_finished > 0) == shares


@pytest.mark.parametrize(
    "options", [{"kv_cache_bytes": 0}, {"kv_cache_bytes": 1.5}, {"kv_cache_bytes": True}, {"prefix_cache": 1}], ids=repr
)
def test_senseless_budgets_are_refused(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is"):
        fresh_llm(**options)


def test_the_budget_is_a_share_of_what_is_free(monkeypatch):
    monkeypatch.setattr("foreword.engine.kv_budget.available_bytes", lambda: 8000)
    assert kv_budget(DECODER) == KVBudget(6000, 1000, 64)
    assert kv_budget(DECODER, 700, False) == KVBudget(700, 700, 0)
    monkeypatch.setattr("foreword.engine.kv_budget.available_bytes", lambda: None)
    assert kv_budget(DECODER) == KVBudget(None, 2**30, 64)


MEASURING = [
    "bench/check_run.py", "bench/drafter_facts.py", "bench/runner.py", "cli/commands/check.py", "cli/commands/demo.py",
    "train/out/live_acceptance.py", "train/out/live_speed.py", "tune/measure.py",
]  # fmt: skip


@pytest.mark.parametrize("name", MEASURING)
def test_what_measures_reads_every_prompt(name):
    """Else the second of two runs over the same prompts would be flattered."""
    source = (Path(foreword.__file__).parent / name).read_text()
    made = [
        node for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "LLM"
    ]  # fmt: skip
    assert made
    for call in made:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert given.get("prefix_cache") == "False", ast.unparse(call)


class Text:
    """An entry of a tree."""

    def __init__(self, token_ids):
        self.token_ids, self.num_held = token_ids, len(token_ids)


def test_the_tree_finds_what_a_search_through_all_finds():
    rng = random.Random(4)
    tree, texts = PrefixTree(), []
    for _ in range(600):
        whole = [rng.randint(0, 1) if rng.random() < 0.02 else 0 for _ in range(rng.randint(0, 5 * BLOCK))]
        action = rng.random()
        if action < 0.4 or not texts:
            texts.append(Text(whole))
            tree.update(texts[-1])
        elif action < 0.5:
            tree.discard(texts.pop(rng.randrange(len(texts))))
        elif action < 0.6:  # it grows, or is cut
            text = rng.choice(texts)
            text.token_ids = [*text.token_ids, *whole]
            text.num_held = rng.randint(0, len(text.token_ids))
            tree.update(text)
        limit = rng.randint(0, len(whole))
        found, length = tree.longest(whole, limit)
        shared = [num_shared(text.token_ids[: text.num_held], whole[:limit]) for text in texts]
        assert length == max(shared, default=0)
        assert {id(t) for t in found} == {id(t) for t, n in zip(texts, shared, strict=True) if n == length}
    for text in texts:
        tree.discard(text)
    assert not tree._root.children
    assert not tree._root.entries


def test_shared_beginnings_are_counted_exactly():
    for length in range(9):
        for place in range(length):
            assert num_shared([0] * length, [*[0] * place, 1, *[0] * 5]) == place
        assert num_shared([0] * length, [0] * (length + 2)) == length
