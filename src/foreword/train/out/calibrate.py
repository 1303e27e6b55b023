"""Which static tree a set of heads deserves: measured on held-out answers, kept in the drafter's card [medusa24].

At every place of an answer, head d ranks the token that really came d + 1 places on. So each place is a row of ranks, and
it confirms one path of every depth: a node of a tree is accepted where its path is the beginning of the row. The chance of
a node is counted along its path. (The product of the heads' own accuracies, which takes heads as independent, undervalues
deep nodes: easy places are easy for all heads.) Where few places confirm a path, the product of accuracies is leant on.
"""

import heapq
from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

_TRUST = 10.0  # places that the heads' own accuracies weigh as much as


@dataclass(frozen=True)
class Calibration:
    """What the card of a drafter says of its tree."""

    accuracies: list[list[float]]  # by head, by rank: share of places at which that rank is right
    tree: dict[tuple[int, ...], float]  # path of ranks -> chance that the node is reached; the most probable first
    num_places: int


def calibrate(ranks: Int[np.ndarray, "places heads"], num_ranks: int, num_nodes: int) -> Calibration:
    """Accuracies and the best tree.

    Args:
        ranks: of the true token for each head at each place; `num_ranks` or above where it is none of the first.
        num_ranks: candidates a head may offer.
        num_nodes: most drafted nodes of the tree.
    """
    num_places, num_heads = ranks.shape
    shares = [np.bincount(np.minimum(column, num_ranks), minlength=num_ranks + 1)[:num_ranks] for column in ranks.T]
    accuracies = [(counts / max(1, num_places)).tolist() for counts in shares]
    seen: Counter[tuple[int, ...]] = Counter()
    for row in ranks.tolist():
        seen[()] += 1
        for depth in range(1, num_heads + 1):
            if row[depth - 1] >= num_ranks:
                break
            seen[tuple(row[:depth])] += 1
    return Calibration(accuracies, _best_tree(accuracies, seen, num_nodes), num_places)


def _best_tree(
    accuracies: list[list[float]], seen: Counter[tuple[int, ...]], num_nodes: int
) -> dict[tuple[int, ...], float]:
    """Always the most probable node whose parent is in the tree. Chances fall along a path, so this is the best tree."""
    tree: dict[tuple[int, ...], float] = {}
    open_nodes: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    while open_nodes and len(tree) <= num_nodes:
        negative, path = heapq.heappop(open_nodes)
        tree[path] = -negative
        if len(path) == len(accuracies):
            continue
        for rank, share in enumerate(accuracies[len(path)]):
            chance = (seen[(*path, rank)] + _TRUST * share) / (seen[path] + _TRUST)
            if chance > 0:
                heapq.heappush(open_nodes, (negative * chance, (*path, rank)))
    del tree[()]
    return tree
