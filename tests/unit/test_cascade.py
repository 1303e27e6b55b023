"""Drafters in turn: who is asked, what is taken, and what each sees of the pass."""

import pytest

from foreword.draft.base import BaseDrafter, DraftNeed, Plan, known_ids
from foreword.draft.cascade import CascadeDrafter
from foreword.draft.draft_config import DraftConfig, draft_config
from foreword.draft.make_drafter import make_drafter
from foreword.engine.llm import LLM
from foreword.errors import ConfigError, UnknownNameError
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from tests.support.tiny_llm import write_tiny_llm
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, make_engine, plain_tokens, run

DECODER = ToyDecoder()


class Fixed(BaseDrafter):
    """Proposes the same chain always, and remembers what it was asked and shown."""

    def __init__(self, name, chain, prob, top_k=0):
        self.name, self.chain, self.prob, self.need = name, chain, prob, DraftNeed(top_k=top_k)
        self.asked, self.seen = [], []

    def propose(self, requests, plans):
        self.asked.append([r.request_id for r in requests])
        trees = []
        for request, plan in zip(requests, plans, strict=True):
            known = known_ids(request, plan)
            chain = self.chain[: min(plan.num_nodes, plan.depth)]
            tree = DraftTree.chain(known, chain)
            probs = [*[1.0] * len(known), *(self.prob ** (i + 1) for i in range(len(chain)))]
            trees.append(DraftTree(tree.token_ids, tree.parents, len(known), probs))
        return trees

    def observe(self, requests, trees, verdicts, batch, output):
        for i, (tree, verdict) in enumerate(zip(trees, verdicts, strict=True)):
            first, end = batch.starts[i], batch.starts[i + 1]
            assert batch.token_ids[first:end].tolist() == list(tree.token_ids)
            assert batch.local_parents(i).tolist() == list(tree.parents)
            for node in range(tree.num_nodes):
                assert batch.positions[first + node] == batch.kv_lens[i] + tree.depths[node]
            assert verdict.path[: tree.num_known] == tuple(range(tree.num_known))
            assert verdict.accepted == tuple(tree.token_ids[n] for n in verdict.path[tree.num_known :])
            if self.need.top_k:
                assert output.top_ids[first:end].shape == (end - first, self.need.top_k)
            text = requests[i].token_ids[batch.kv_lens[i] + tree.num_known :]  # what the pass really brought
            assert list(verdict.emitted)[: len(text)] == text[: len(verdict.emitted)]
            self.seen.append(verdict)


class View:
    kv_len, prompt_len = 2, 3

    def __init__(self, request_id, token_ids=(1, 2, 3)):
        self.request_id, self.token_ids = request_id, list(token_ids)


def test_the_first_worthwhile_proposal_is_taken_and_no_other_asked_for():
    cheap, dear = Fixed("cheap", [5, 6], 0.9), Fixed("dear", [7], 0.5)
    cascade = CascadeDrafter([cheap, dear], threshold=1.0)
    (tree,) = cascade.propose([View(0)], [Plan(1, 4, 4)])
    assert list(tree.token_ids) == [3, 5, 6]
    assert dear.asked == []
    cheap.prob = 0.3
    (tree,) = cascade.propose([View(0)], [Plan(1, 4, 4)])
    assert list(tree.token_ids) == [3, 7]  # nobody is worth a pass: the last word is the dearest's
    dear.chain = []
    (tree,) = cascade.propose([View(0)], [Plan(1, 4, 4)])
    assert list(tree.token_ids) == [3, 5, 6]


def test_merged_proposals_share_the_plan():
    first, second = Fixed("a", [5, 6, 7, 8, 9], 0.5), Fixed("b", [5, 6, 1, 2, 3], 0.5)
    (tree,) = CascadeDrafter([first, second], is_merging=True).propose([View(0)], [Plan(1, 6, 6)])
    tree.check()
    assert list(tree.token_ids) == [3, 5, 6, 7, 1]
    first.chain = [5]
    (tree,) = CascadeDrafter([first, second], is_merging=True).propose([View(0)], [Plan(1, 6, 6)])
    assert list(tree.token_ids) == [3, 5, 6, 1, 2, 3]  # what one leaves, the next may use


@pytest.mark.parametrize("is_merging", [False, True])
def test_a_plan_may_leave_the_last_drafters_out(is_merging):
    cheap, dear = Fixed("cheap", [5, 6, 7], 0.3), Fixed("dear", [9], 0.9)
    cascade = CascadeDrafter([cheap, dear], is_merging=is_merging)
    few, all_of_them = cascade.propose([View(0), View(1)], [Plan(1, 4, 4, first_drafters=1), Plan(1, 4, 4)])
    assert list(few.token_ids) == [3, 5, 6, 7], "the whole plan is the first one's"
    assert 9 in all_of_them.token_ids
    assert dear.asked == [[1]]


@pytest.mark.parametrize("is_merging", [False, True])
def test_each_drafter_sees_the_pass_as_its_own(is_merging):
    """`Fixed.observe` checks trees, batch, output and verdict against each other, prefill and plain steps included."""
    parts = [Fixed("a", [3, 1], 0.4, top_k=2), Fixed("b", [3, 4, 1, 9], 0.5), Fixed("c", [0, 3], 0.4)]
    params = SamplingParams(max_tokens=30)
    engine = make_engine(DECODER, CascadeDrafter(parts, 0.9, is_merging), num_nodes=9, batch_size=3)
    for request in run(engine, PROMPTS, [params] * len(PROMPTS)):
        assert request.new_ids == plain_tokens(DECODER, request.token_ids[: request.prompt_len], params)
    num_passes = {len(part.seen) for part in parts}
    assert len(num_passes) == 1
    assert sum(verdict.num_accepted for part in parts for verdict in part.seen) > 0


def test_names_joined_by_commas():
    config = draft_config("suffix,draft_model=some/where,ngram")
    assert [(member.name, member.path) for member in config.members] == [
        ("suffix", None), ("draft_model", "some/where"), ("ngram", None)
    ]  # fmt: skip
    with pytest.raises(UnknownNameError, match="'sufix'.*did you mean 'suffix'"):
        draft_config("ngram,sufix")
    with pytest.raises(ConfigError, match="none goes with no other: it drafts nothing"):
        draft_config("suffix,none")
    cascade = make_drafter(draft_config("suffix,recycling,ngram"), Target(DECODER))
    assert cascade.name == "suffix,recycling,ngram"
    assert cascade.need == DraftNeed(top_k=8, can_miss=True)
    with pytest.raises(ConfigError, match="draft_model=PATH"):
        make_drafter(draft_config("suffix,draft_model"), Target(DECODER))


class Witness(Fixed):
    """Checks the most probable tokens that it is shown against the model itself."""

    def __init__(self, name, chain, prob, top_k, top_of_known):
        super().__init__(name, chain, prob)
        self.need = DraftNeed(top_k=top_k, top_of_known=top_of_known)

    def observe(self, requests, trees, verdicts, batch, output):
        rows = output.top_ids.tolist()
        assert len(rows) == len(self.need.top_nodes(trees, batch.starts))
        for i, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            for node in range(0 if self.need.top_of_known else tree.num_known - 1, tree.num_nodes):
                text = [*request.token_ids[: batch.kv_lens[i]], *(tree.token_ids[n] for n in tree.path_to(node))]
                row = DECODER.logits_after(text, len(text) - 1)
                assert rows.pop(0) == row.topk(self.need.top_k).indices.tolist()
        self.seen.append(len(trees))


@pytest.mark.parametrize("is_merging", [False, True])
@pytest.mark.parametrize("wants_known", [False, True])
def test_prompt_nodes_are_asked_for_only_where_a_part_wants_them(wants_known, is_merging):
    parts = [Witness("a", [3, 1, 4], 0.5, 1, False), Fixed("b", [3, 5], 0.3), Witness("c", [3, 2], 0.4, 2, wants_known)]
    cascade = CascadeDrafter(parts, 0.9, is_merging)
    assert cascade.need == DraftNeed(top_k=2, top_of_known=wants_known)
    params = SamplingParams(max_tokens=12)
    engine = make_engine(DECODER, cascade, num_nodes=9, batch_size=3)
    for request in run(engine, PROMPTS, [params] * len(PROMPTS)):
        assert request.new_ids == plain_tokens(DECODER, request.token_ids[: request.prompt_len], params)
    assert parts[0].seen == parts[2].seen != []
    target = Target(DECODER)
    assert not make_drafter(draft_config("ngram,lookahead"), target).need.top_of_known
    assert make_drafter(draft_config("recycling,lookahead"), target).need.top_of_known


def test_a_json_config_may_name_several():
    config = draft_config({"method": "suffix,ngram", "cascade_merge": True, "prompt_lookup_max": 2})
    cascade = make_drafter(config, Target(DECODER))
    assert cascade.is_merging
    assert cascade.drafters[1].longest == 2
    assert isinstance(config, DraftConfig)


def test_a_common_path_goes_to_the_parts_that_take_one():
    config = DraftConfig(method="suffix,eagle3,medusa=own", path="common")
    assert [(member.name, member.path) for member in config.members] == [
        ("suffix", None), ("eagle3", "common"), ("medusa", "own")
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="path is 'common', and drafter 'suffix,medusa=own' names its own"):
        DraftConfig(method="suffix,medusa=own", path="common")


@pytest.mark.parametrize("method", ["ngram,lookahead", "suffix,lookahead"])
def test_a_window_that_moves_by_being_read_is_never_passed_over(method, tmp_path_factory):
    """Its nodes have no chance of their own: by what is expected of them they would lose to any guess."""
    model = write_tiny_llm(tmp_path_factory.mktemp("tiny")).load()
    llm = LLM(model, DraftConfig(method=method, options={"cascade_threshold": 9.0}), num_speculative_tokens=12)
    drafter = llm.engine.parts.drafter
    lookahead, num_read = drafter.drafters[1], []
    observe = lookahead.observe

    def watched(requests, trees, *rest):
        num_read.append(sum(tree.num_drafted for tree in trees))
        observe(requests, trees, *rest)

    lookahead.observe = watched
    llm.generate([[1, 2, 3, 1, 2]], SamplingParams(max_tokens=40, ignore_eos=True))
    after_prompt = num_read[2:-3]  # the window begins behind the prompt, and is cut short near the end
    assert len(after_prompt) > 5
    assert min(after_prompt) > 0
