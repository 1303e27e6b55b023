"""A grown tree holds the likeliest candidates, as a whole tree."""

import math
import random

import pytest

from foreword.tree.grow import TreeGrowth


def grown(seed, width, depth, k=3, vocab=50):
    rng = random.Random(seed)
    growth, frontiers, frontier = TreeGrowth(), [], [-1]
    for _ in range(depth):
        for node in frontier:
            weights = sorted((rng.random() for _ in range(k)), reverse=True)
            growth.add(node, rng.sample(range(vocab), k), [math.log(w / (sum(weights) + 0.3)) for w in weights])
        frontier = growth.advance(width)
        frontiers.append(list(frontier))
    return growth, frontiers


@pytest.mark.parametrize("seed", range(20))
def test_the_best_nodes_are_kept_and_hang_together(seed):
    growth, _ = grown(seed, width=3, depth=4)
    for num_nodes in (1, 4, 9, 100):
        tree = growth.best([7, 8], num_nodes)
        tree.check()
        assert tree.num_known == 2
        assert tree.num_drafted == min(num_nodes, len(growth.token_ids))
        kept = sorted(tree.accept_probs[2:])
        best = sorted((math.exp(score) for score in growth.scores), reverse=True)[: tree.num_drafted]
        assert kept == pytest.approx(sorted(best))


@pytest.mark.parametrize("seed", range(10))
def test_each_level_expands_its_best(seed):
    growth, frontiers = grown(seed, width=2, depth=4)
    depths = [len(growth.path_tokens(node)) for node in range(len(growth.token_ids))]
    for level, frontier in enumerate(frontiers, 1):
        nodes = [node for node, depth in enumerate(depths) if depth == level]
        by_score = sorted(nodes, key=lambda node: -growth.scores[node])
        assert frontier == sorted(by_score[:2])


def test_what_the_drafter_reads_is_the_expanded_part_with_its_paths():
    growth, _ = grown(0, width=2, depth=3)
    tree, frontier = growth.read_tree(9)
    tree.check()
    assert tree.num_nodes == 1 + 2 * 3
    for node, grown_node in zip(frontier, growth.frontier, strict=True):
        assert [tree.token_ids[n] for n in tree.path_to(node)] == [9, *growth.path_tokens(grown_node)]


def test_among_equals_the_shallower_and_earlier_goes_first():
    growth = TreeGrowth()
    growth.add(-1, [1, 2], [math.log(0.5), math.log(0.25)])
    growth.advance(2)
    growth.add(0, [3], [math.log(0.5)])  # as likely as token 2
    assert list(growth.best([0], 2).token_ids) == [0, 1, 2]
    growth.add(1, [4], [1e-9])  # rounding above 0 does not make a child likelier than its parent
    assert growth.scores[-1] == growth.scores[1]
