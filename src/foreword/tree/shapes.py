"""Static tree shapes: which ranks to try at which depth, chosen once from how often each rank is right.

    rank 0    rank 1    rank 2        children of the root
      │         │
    rank 0    rank 0                  their children
      │
    rank 0

A drafter that names its k likeliest next tokens at every depth (Medusa's heads, Token Recycling's table) fills such a
shape with tokens. With a[d][r] the share of positions at which rank r of depth d is right, and ranks taken as
independent, a node is reached with the product of a over its path, and the expected number of accepted tokens is the
sum over the nodes. So the best tree of n nodes is grown greedily, always adding the most probable node whose parent is in
it [medusa24, section 2.3; sequoia24].
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

from foreword.errors import ConfigError


@dataclass(frozen=True)
class TreeShape:
    """Drafted nodes in breadth-first order, the root left out. Parents are numbers of nodes; -1 is the root."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]  # which of its parent's candidates each node is
    probs: tuple[float, ...]  # probability that each node is reached

    @property
    def num_nodes(self) -> int:
        """Drafted nodes."""
        return len(self.parents)

    @property
    def expected_accepted(self) -> float:
        """Expected number of accepted tokens per step, if the probabilities hold."""
        return sum(self.probs)

    @cached_property
    def levels(self) -> list[range]:
        """The nodes of each depth, depth 1 first: consecutive, since the order is breadth-first."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        if not depths:
            return []
        first_nodes = [depths.index(depth) for depth in range(1, max(depths) + 1)]
        ends = [*first_nodes[1:], len(depths)]
        return [range(first, end) for first, end in zip(first_nodes, ends, strict=True)]

    @cached_property
    def arrays(self) -> tuple[Int[np.ndarray, " nodes"], Int[np.ndarray, " nodes"]]:
        """Parents and ranks, for indexing."""
        return np.asarray(self.parents, dtype=np.int64), np.asarray(self.ranks, dtype=np.int64)

    @cached_property
    def paths(self) -> list[tuple[int, ...]]:
        """The ranks from the root to each node."""
        paths: list[tuple[int, ...]] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), rank))
        return paths


def best_first(rank_probs: Sequence[Sequence[float]], num_nodes: int, max_depth: int | None = None) -> TreeShape:
    """The tree of at most `num_nodes` nodes with the most expected accepted tokens.

    Args:
        rank_probs: for each depth, for each rank, the share of positions at which it is right; the last row serves
        deeper
            depths too, where `max_depth` asks for them.
        num_nodes: most drafted nodes.
        max_depth: most drafted tokens in a row; the number of rows unless given.
    """
    max_depth = len(rank_probs) if max_depth is None else max_depth
    open_nodes: list[tuple[float, int, tuple[int, ...]]] = []  # (-prob, order of discovery, path): a heap

    def offer_children(path: tuple[int, ...], prob: float) -> None:
        if len(path) < max_depth:
            for rank, share in enumerate(rank_probs[min(len(path), len(rank_probs) - 1)]):
                if share > 0:
                    heapq.heappush(open_nodes, (-prob * share, len(open_nodes), (*path, rank)))

    chosen: dict[tuple[int, ...], float] = {}
    offer_children((), 1.0)
    while open_nodes and len(chosen) < num_nodes:
        negative, _, path = heapq.heappop(open_nodes)
        chosen[path] = -negative
        offer_children(path, -negative)
    return from_paths(chosen)


def from_paths(probs: dict[tuple[int, ...], float]) -> TreeShape:
    """The shape whose nodes have these rank paths (Medusa's `choices`), with the probability that each is reached.

    Raises:
        ConfigError: a path is empty or its parent is missing.
    """
    order = sorted(probs, key=lambda path: (len(path), path))
    number = {path: node for node, path in enumerate(order)} | {(): -1}
    for path in order:
        if not path or path[:-1] not in number:
            raise ConfigError(f"path {list(path)} has no parent in the tree; give each path with all its beginnings")
    return TreeShape(
        tuple(number[path[:-1]] for path in order),
        tuple(path[-1] for path in order),
        tuple(probs[path] for path in order),
    )
