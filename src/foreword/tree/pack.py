"""Many trees as one flat pass.

Nodes of all requests lie one after the other, without padding:

    request        0     0     0     1     1     1     1
    node           0     1     2     3     4     5     6
    parent        -1     0     0    -1     3     3     5
    position      12    13    13     7     8     8     9       kv_len + depth

A position is a token's place in its sequence. Siblings share one; that is why committing a path is only a move of cache rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

from foreword.tree.draft_tree import DraftTree


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """The nodes of one pass. Request r owns nodes [starts[r], starts[r + 1])."""

    token_ids: Int[np.ndarray, " nodes"]  # int32
    parents: Int[np.ndarray, " nodes"]  # int32, index in this batch; -1 for a root
    positions: Int[np.ndarray, " nodes"]  # int32
    starts: Sequence[int]  # first node of each request, then the number of nodes
    kv_lens: Sequence[int]  # cached positions of each request before the pass
    slots: Sequence[int]  # each request's sequence slot in the KV cache

    @property
    def num_nodes(self) -> int:
        """Nodes of all requests."""
        return self.starts[-1]

    @property
    def num_requests(self) -> int:
        """Requests that share the pass."""
        return len(self.slots)

    @cached_property
    def chain_lens(self) -> list[int]:
        """For each request, how many leading nodes form a chain (the rest branch off or follow a branch)."""
        lens = []
        for first, end in zip(self.starts, self.starts[1:], strict=False):
            parents = self.parents[first:end]
            breaks = np.flatnonzero(parents[1:] != np.arange(first, end - 1))
            lens.append(int(breaks[0]) + 1 if len(breaks) else end - first)
        return lens

    def local_parents(self, request: int) -> Int[np.ndarray, " nodes"]:
        """Parents of one request's nodes, counted from its own first node."""
        first, end = self.starts[request], self.starts[request + 1]
        return np.maximum(self.parents[first:end] - first, -1)


def pack(trees: Sequence[DraftTree], kv_lens: Sequence[int], slots: Sequence[int]) -> PackedBatch:
    """Lay the trees of several requests out for one pass."""
    token_ids: list[int] = []
    parents: list[int] = []
    positions: list[int] = []
    starts = [0]
    for tree, kv_len in zip(trees, kv_lens, strict=True):
        first = starts[-1]
        token_ids.extend(tree.token_ids)
        parents.extend([parent + first if parent >= 0 else -1 for parent in tree.parents])
        positions.extend([kv_len + depth for depth in tree.depths])
        starts.append(first + tree.num_nodes)
    return PackedBatch(
        np.asarray(token_ids, dtype=np.int32),
        np.asarray(parents, dtype=np.int32),
        np.asarray(positions, dtype=np.int32),
        starts,
        list(kv_lens),
        list(slots),
    )
