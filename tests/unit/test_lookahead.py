"""Lookahead's window is a Jacobi iteration, read whole or not at all, and its n-grams are what the target said."""

import pytest

from foreword.draft.base import Plan
from foreword.draft.lookup.lookahead import LookaheadDrafter, NgramPool
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from tests.support.drafters import Checked
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, SAMPLED, make_engine, plain_tokens, run

DECODER = ToyDecoder()


class View:
    request_id, kv_len, prompt_len = 0, 2, 3
    token_ids = (1, 2, 3)


def test_the_pool_keeps_the_newest():
    pool = NgramPool(2)
    for continuation in ((1, 2), (3, 4), (1, 2), (5, 6)):
        pool.add(9, continuation)
    assert pool.guesses(9) == [(5, 6), (1, 2)]
    assert pool.guesses(8) == []


@pytest.mark.parametrize(("width", "ngram"), [(1, 2), (1, 4), (4, 2), (3, 3), (5, 4)])
def test_the_window_has_its_shape(width, ngram):
    """(0, j) hangs off (0, j - 1), (l, j) off (l - 1, j): depth l + j, and W (N - 1) - 1 nodes when none coincide."""
    drafter = LookaheadDrafter(width, ngram, 2, pool_from_text=False)
    drafter.start(View())
    state = drafter._states[0]
    state.levels = [[100 * level + column for column in range(width)] for level in range(ngram - 1)]
    (tree,) = drafter.propose([View()], [Plan(1, 60, 60)])
    tree.check()
    assert tree.num_drafted == drafter.num_window_nodes == width * (ngram - 1) - 1
    for level, nodes in enumerate(state.window):
        for column, node in enumerate(nodes):
            assert tree.depths[node] == level + column
            path = [tree.token_ids[n] for n in tree.path_to(node)][1:]
            expected = [*range(1, column + 1), *(100 * upper + column for upper in range(1, level + 1))]
            assert path == expected


def test_equal_siblings_are_one_node_and_the_window_still_finds_its_own():
    drafter = LookaheadDrafter(3, 3, 2, pool_from_text=False)
    drafter.start(View())
    state = drafter._states[0]
    state.levels = [[0, 7, 8], [7, 8, 9]]  # (1, 0) is (0, 1), so that (1, 1) is (0, 2)
    state.pool.add(3, (7, 8))
    (tree,) = drafter.propose([View()], [Plan(1, 9, 9)])
    tree.check()
    assert list(tree.token_ids) == [3, 7, 8, 9]
    assert state.window == [[0, 1, 2], [1, 2, 3]]


@pytest.mark.parametrize(("num_nodes", "depth"), [(4, 9), (9, 2), (5, 3)])
def test_a_plan_drops_guesses_before_any_of_the_window(num_nodes, depth):
    """W = 3, N = 3: five nodes, three deep. Too small a plan gets guesses alone."""
    drafter = LookaheadDrafter(3, 3, 4, pool_from_text=False)
    drafter.start(View())
    state = drafter._states[0]
    state.levels = [[0, 10, 11], [12, 13, 14]]
    for start in (20, 22, 24):
        state.pool.add(3, (start, start + 1))
    (tree,) = drafter.propose([View()], [Plan(1, num_nodes, depth)])
    tree.check()
    window = {10, 11, 12, 13, 14} & set(tree.token_ids)
    if num_nodes >= 5 and depth >= 3:
        assert len(window) == 5
    else:
        assert window == set()
        assert tree.num_drafted == min(num_nodes, 6)
    assert tree.num_drafted <= num_nodes


class Watching(Checked):
    """Works out by the model's definition what each window must become."""

    num_moves = 0

    def observe(self, requests, trees, verdicts, batch, output):
        state = self.drafter._states[requests[0].request_id]
        levels, tree = [list(level) for level in state.levels], state.tree
        start = batch.kv_lens[0]
        self.drafter.observe(requests, trees, verdicts, batch, output)
        if tree is None:
            return
        before = requests[0].token_ids[: start + 1]
        newest = []
        for column in range(self.drafter.width):
            path = [*levels[0][1 : column + 1], *(level[column] for level in levels[1:])]
            text = [*before, *path]
            newest.append(int(DECODER.logits_after(text, len(text) - 1).argmax()))
        assert state.levels == [*levels[1:], newest]
        self.num_moves += 1
        if self.num_moves >= self.drafter.num_levels:
            levels[0][0] = before[-1]
            for column in range(self.drafter.width):
                ngram = (*(level[column] for level in levels[1:]), newest[column])
                assert ngram in state.pool._by_token[levels[0][column]] or len(ngram) == 0


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 11}], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("width", "ngram"), [(2, 2), (3, 3), (4, 4)])
def test_every_pass_moves_the_window_by_the_targets_own_argmax(width, ngram, options):
    """Also when sampling; the pool gets what the columns have become."""
    drafter = Watching(LookaheadDrafter(width, ngram, 50, pool_from_text=False))
    params = SamplingParams(max_tokens=40, **options)
    (request,) = run(make_engine(DECODER, drafter, num_nodes=24), PROMPTS[1:2], [params])
    assert request.new_ids == plain_tokens(DECODER, PROMPTS[1], params)
    assert drafter.num_moves > 10


def test_the_pool_takes_the_texts_own_ngrams():
    drafter = LookaheadDrafter(2, 3, 4, pool_from_text=True)
    view = View()
    view.token_ids, view.kv_len = (3, 5, 6, 1, 3), 4
    drafter.start(view)
    (tree,) = drafter.propose([view], [Plan(1, 2, 2)])  # too small for the window
    assert list(tree.token_ids[1:]) == [5, 6]


def test_what_lookahead_finds_is_accepted():
    """A target that goes round in circles: its own n-grams come back."""

    class Circling(ToyDecoder):
        def logits_after(self, tokens, position):
            return super().logits_after([tokens[-1] % 6], 0)

    decoder, params = Circling(), SamplingParams(max_tokens=60)
    drafter = LookaheadDrafter(4, 4, 4, pool_from_text=False)
    (request,) = run(make_engine(decoder, drafter, num_nodes=24), [[1, 2, 3]], [params])
    assert request.new_ids == plain_tokens(decoder, [1, 2, 3], params)
    assert request.stats.tokens_per_step > 2.5


def test_a_grammar_that_takes_window_nodes_out_only_makes_it_wait():
    drafter = LookaheadDrafter(3, 3, 2, pool_from_text=False)

    class Pruning(Checked):
        def propose(self, requests, plans):
            trees = super().propose(requests, plans)
            return [tree.subset(range(max(tree.num_known, tree.num_nodes - 1))) for tree in trees]

    params = SamplingParams(**SAMPLED)
    target = Target(DECODER)
    (request,) = run(make_engine(DECODER, Pruning(drafter), target=target, num_nodes=12), PROMPTS[:1], [params])
    assert request.new_ids == plain_tokens(DECODER, PROMPTS[0], params)
