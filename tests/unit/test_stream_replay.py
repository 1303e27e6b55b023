"""The benchmark of a stream replays drafting without a model: it counts what an engine counts."""

import pytest

from benchmarks.stream import Count, Stream, back_after, followed, reliability
from benchmarks.stream_requests import MAX_TOKENS
from foreword import SamplingParams
from foreword.draft.memory.drafter import MemoryDrafter
from foreword.draft.memory.memory import Memory
from foreword.draft.memory.store import LEAST_BYTES
from foreword.tree.draft_tree import DraftTree
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, make_engine, run

DECODER = ToyDecoder(num_layers=2)


def memory() -> MemoryDrafter:
    return MemoryDrafter(Memory(LEAST_BYTES, DECODER.spec.vocab_size), None)


@pytest.mark.parametrize("num_nodes", [1, 6])
def test_steps_and_nodes_are_those_of_an_engine(num_nodes):
    engine, stream = make_engine(DECODER, memory(), num_nodes=num_nodes), Stream(memory(), num_nodes)
    for index, prompt in enumerate([*PROMPTS, *PROMPTS[:2]]):
        params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.7, seed=index % len(PROMPTS))
        (request,) = run(engine, [prompt], [params])
        count = stream.run((prompt, request.new_ids))
        assert (count.steps, count.tokens) == (request.stats.num_steps, MAX_TOKENS - 1)
        assert count.nodes == request.stats.drafted_tokens


def test_an_answer_that_ends_inside_a_draft_counts_no_token_beyond():
    class Sure(MemoryDrafter):
        def propose(self, requests, plans):
            return [DraftTree.chain([requests[0].token_ids[-1]], [1, 2, 3, 4])]

    sure = Sure(Memory(LEAST_BYTES, DECODER.spec.vocab_size), None)
    count = Stream(sure, 4).run(([7, 8], [0, 1, 2]))
    assert (count.steps, count.tokens) == (1, 2)


def test_the_path_of_an_answer_through_a_tree():
    tree = DraftTree([9, 1, 2, 3], [-1, 0, 0, 1], 1)
    assert followed(tree, [1, 3, 5]) == [0, 1, 3]
    assert followed(tree, [2, 3]) == [0, 2]
    assert followed(tree, [7]) == [0]


def test_back_is_where_a_window_is_at_the_level():
    steady = [Count(10, 20)] * 12
    slow = [Count(15, 20)] * 4 + [Count(10, 20)] * 8
    assert back_after(steady, steady) == 0
    assert back_after(slow, steady) == 4
    assert back_after([Count(15, 20)] * 12, steady) == 12


def test_reliability_is_the_mean_distance():
    found = reliability([(0.25, True), (0.25, False), (0.85, True)])
    assert found["error"] == pytest.approx((2 * 0.25 + 0.15) / 3)
