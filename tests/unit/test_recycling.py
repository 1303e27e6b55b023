"""The table holds what the target said last, for every token it read, and the tree is the table followed."""

import numpy as np
import pytest
import torch

from foreword.draft.base import Plan
from foreword.draft.lookup.recycling import RANK_PROBS, RecyclingDrafter, fill, shape_for
from foreword.runtime.base import PassOutput
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from foreword.tree.shapes import best_first
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import make_engine, run


class View:
    request_id, kv_len, prompt_len = 0, 3, 4
    token_ids = (1, 2, 3, 4)


def followed(shape, table, root):
    """Node by node, the slow way."""
    tokens = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        before = root if parent < 0 else tokens[parent]
        tokens.append(int(table[before, rank]) if before >= 0 else -1)
    return tokens


@pytest.mark.parametrize("seed", range(8))
def test_filling_level_by_level_is_following_node_by_node(seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(-1, 30, size=(30, 5)).astype(np.int32)
    shape = best_first([rng.random(5).tolist()], 24, 5)
    assert fill(shape, table, 7).tolist() == followed(shape, table, 7)


def observed(drafter, tree, top_ids):
    batch = pack([tree], [3], [0])
    drafter.observe([View()], [tree], [], batch, PassOutput(top_ids=torch.tensor(top_ids, dtype=torch.int64)))


def test_every_node_of_a_pass_writes_its_row_rejected_ones_too():
    drafter = RecyclingDrafter(20, top_k=2)
    observed(drafter, DraftTree([4, 5, 6, 5], [-1, 0, 0, 1]), [[5, 6], [7, 8], [9, 10], [11, 12]])
    (tree,) = drafter.propose([View()], [Plan(1, 6, 3)])
    tree.check()
    assert tree.children[0].keys() == {5, 6}
    paths = [[tree.token_ids[n] for n in tree.path_to(node)] for node in range(tree.num_nodes)]
    assert [4, 5, 11] in paths  # token 5 was read twice: the later row counts
    assert [4, 6, 9] in paths
    assert not any(7 in path for path in paths)


def test_branches_that_the_table_knows_nothing_of_are_left_out():
    drafter = RecyclingDrafter(20, top_k=2)
    assert drafter.propose([View()], [Plan(1, 8, 4)])[0].num_drafted == 0
    observed(drafter, DraftTree([4], [-1]), [[5, 6]])
    (tree,) = drafter.propose([View()], [Plan(1, 8, 4)])
    tree.check()
    assert list(tree.token_ids) == [4, 5, 6]
    assert tree.accept_probs == pytest.approx([1.0, RANK_PROBS[0], RANK_PROBS[1]])


def test_the_table_is_the_targets_own_ranking():
    """After a run, the row of every token is the top k of the logits where it was last read."""
    decoder = ToyDecoder()
    target, drafter = Target(decoder), RecyclingDrafter(12, top_k=3)
    seen = {}

    class Watching:
        def __getattr__(self, name):
            return getattr(drafter, name)

        def observe(self, requests, trees, verdicts, batch, output):
            for node, token in enumerate(batch.token_ids.tolist()):
                seen[token] = output.top_ids[node].tolist()
            drafter.observe(requests, trees, verdicts, batch, output)
            for token, row in seen.items():
                assert drafter._shared[token].tolist() == row

    run(make_engine(decoder, Watching(), target=target), [[1, 2, 3, 4, 5]], [SamplingParams(max_tokens=30)])
    assert len(seen) > 8


def test_a_table_of_its_own_ends_with_the_request():
    drafter = RecyclingDrafter(20, top_k=2, per_request=True)
    drafter.start(View())
    observed(drafter, DraftTree([4], [-1]), [[5, 6]])
    assert drafter.propose([View()], [Plan(1, 8, 4)])[0].num_drafted == 2
    drafter.stop(View())
    drafter.start(View())
    assert drafter.propose([View()], [Plan(1, 8, 4)])[0].num_drafted == 0


def test_shapes_are_made_once():
    assert shape_for(15, 6, 8) is shape_for(15, 6, 8)
    assert max(len(path) for path in shape_for(15, 3, 8).paths) == 3
