"""Static shapes hold the most probable nodes and nothing that hangs in the air."""

import itertools
import random

import pytest

from foreword.errors import ConfigError
from foreword.tree.shapes import best_first, from_paths


def best_by_trying_all(rank_probs, num_nodes):
    """The most expected accepted tokens of any tree of this size, by enumeration."""
    paths = [
        path
        for depth in range(1, len(rank_probs) + 1)
        for path in itertools.product(*(range(len(row)) for row in rank_probs[:depth]))
    ]
    values = {path: _product(rank_probs[d][r] for d, r in enumerate(path)) for path in paths}
    return max(
        sum(values[path] for path in chosen)
        for chosen in itertools.combinations(paths, num_nodes)
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen)
    )


def _product(numbers):
    result = 1.0
    for number in numbers:
        result *= number
    return result


@pytest.mark.parametrize("seed", range(12))
def test_no_tree_of_the_same_size_expects_more(seed):
    rng = random.Random(seed)
    rank_probs = [[rng.random() / 2 for _ in range(2)] for _ in range(3)]  # not in order of likelihood either
    for num_nodes in range(1, 6):
        shape = best_first(rank_probs, num_nodes)
        assert shape.num_nodes == num_nodes
        assert shape.expected_accepted == pytest.approx(best_by_trying_all(rank_probs, num_nodes))


def test_order_is_breadth_first_and_parents_come_first():
    shape = best_first([[0.5, 0.3, 0.1]], 20, max_depth=4)
    lengths = [len(path) for path in shape.paths]
    assert lengths == sorted(lengths)
    assert max(lengths) == 4
    for node, (parent, rank, path) in enumerate(zip(shape.parents, shape.ranks, shape.paths, strict=True)):
        assert parent < node
        assert path == (*(shape.paths[parent] if parent >= 0 else ()), rank)
    assert [node for level in shape.levels for node in level] == list(range(20))
    assert all(lengths[node] == depth for depth, level in enumerate(shape.levels, 1) for node in level)


def test_the_last_row_serves_deeper_levels_and_impossible_ranks_are_left_out():
    shape = best_first([[0.9, 0.0], [0.5]], 10, max_depth=4)
    assert shape.paths == [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
    assert shape.probs == pytest.approx((0.9, 0.45, 0.225, 0.1125))
    assert best_first([[0.9]], 0).num_nodes == 0
    assert best_first([[0.9]], 0).levels == []


def test_paths_without_their_beginnings_are_refused():
    with pytest.raises(ConfigError, match=r"path \[0, 1\] has no parent"):
        from_paths({(0, 1): 0.5, (1,): 0.2})
    with pytest.raises(ConfigError, match=r"path \[\] has no parent"):
        from_paths({(): 1.0})
