"""Which tree a set of heads drafts: the calibrated one of its card, or a generic one."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from foreword.errors import CheckpointError
from foreword.tree.shapes import TreeShape, from_paths

Paths = tuple[tuple[tuple[int, ...], float], ...]  # path of ranks, probability that its node is reached

# Of the first five heads of a 7B model, how often the top-1 token is right; and how rank after rank of the first head
# shares in that [medusa24].
_TOP = (0.560, 0.316, 0.201, 0.147, 0.118)
_BY_RANK = (0.560, 0.112, 0.055, 0.033, 0.020, 0.014, 0.011, 0.009, 0.007, 0.006)
GENERIC_ACCURACIES = [[top * share / _BY_RANK[0] for share in _BY_RANK] for top in _TOP]
# Children of each node of the generic tree of 63 nodes [medusa24]; of those left out, none.
_CHILDREN: Mapping[tuple[int, ...], int] = {
    (): 10, (0,): 10, (1,): 7, (2,): 3, (3,): 2, (0, 0): 10, (0, 1): 3, (0, 2): 2, (1, 0): 2, (2, 0): 1, (0, 0, 0): 2,
    **{(rank,): 1 for rank in range(4, 10)}, **{(0, rank): 1 for rank in range(3, 8)},
}  # fmt: skip


def generic_paths(accuracies: Sequence[Sequence[float]] | None = None) -> Paths:
    """The tree of 63 nodes that Medusa's authors use where nothing was measured."""
    shares = accuracies or GENERIC_ACCURACIES
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for parent, num_children in sorted(_CHILDREN.items(), key=lambda item: len(item[0])):
        row = shares[len(parent)] if len(parent) < len(shares) else ()
        for rank in range(min(num_children, len(row))):
            if parent in chances:
                chances[(*parent, rank)] = chances[parent] * row[rank]
    del chances[()]
    return tuple(chances.items())


def paths_of(card: Mapping[str, Any]) -> Paths:
    """The tree of a card. `CheckpointError` where what it says is no tree."""
    accuracies = card.get("accuracies")
    choices, chances = card.get("choices"), card.get("choice_probs")
    try:
        if choices is None:
            choices, chances = zip(*generic_paths(accuracies), strict=True)
        paths = [tuple(int(rank) for rank in path) for path in choices]
        if chances is None:
            chances = [_product(accuracies or GENERIC_ACCURACIES, path) for path in paths]
        chosen = {path: float(chance) for path, chance in zip(paths, chances, strict=True)}
        from_paths(chosen)
        if len(chosen) != len(paths) or any(rank < 0 for path in paths for rank in path):
            raise ValueError("a path twice, or a rank below 0")
        if any(not 0 <= chance <= chosen.get(path[:-1], 1.0) + 1e-6 for path, chance in chosen.items()):
            raise ValueError("a node is reached more often than its parent")
    except (TypeError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"the card's tree is damaged ({error}); allowed: choices, a list of paths of ranks in which no parent is missing, "
            f"and choice_probs, as many chances from 0 to 1"
        ) from error
    return tuple(chosen.items())


def cut(paths: Paths, num_nodes: int, max_depth: int, width: int | None) -> "Template":
    """The most probable nodes of a tree, within depth and candidates per node."""
    allowed = [item for item in paths if len(item[0]) <= max_depth and (width is None or max(item[0]) < width)]
    allowed.sort(key=lambda item: (-item[1], len(item[0]), item[0]))
    chosen: dict[tuple[int, ...], float] = {}
    for path, chance in allowed:
        if len(chosen) < num_nodes and (len(path) == 1 or path[:-1] in chosen):
            chosen[path] = chance
    return Template(from_paths(chosen))


@final
class Template:
    """A shape as arrays, ready to be filled."""

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape
        self.parents, self.ranks = shape.arrays
        self.levels = np.repeat(np.arange(len(shape.levels)), [len(level) for level in shape.levels])  # of each node
        self.places = self.parents + 1  # of each node's parent, counted from the last committed token
        self.num_levels, self.width = len(shape.levels), 1 + max(shape.ranks, default=-1)


def _product(accuracies: Sequence[Sequence[float]], path: Sequence[int]) -> float:
    chance = 1.0
    for depth, rank in enumerate(path):
        chance *= accuracies[depth][rank]
    return chance
