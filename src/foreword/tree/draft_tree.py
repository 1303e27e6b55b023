"""The one shape of every proposal.

    node       0     1     2     3     4
    token    the   cat   dog   sat   ran
    parent    -1     0     0     1     1        depth 0 1 1 2 2

Node 0 is the root, the last committed token that the target has not read yet; every other node is a token with the
token before it as its parent. Parents point backwards, so every algorithm is one pass over the nodes and no cycle can exist.
Masks, depths and paths are derived, never stored.

The first `num_known` nodes are a chain of tokens that are already decided: the root alone, or a chunk of the prompt. The
walk of a verifier starts at the last of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A proposal for one request. Cheap to make; `check()` is for tests and debug mode."""

    token_ids: Sequence[int]  # one per node, root first
    parents: Sequence[int]  # index of each node's parent; -1 for the root
    num_known: int = 1  # leading nodes that are already decided
    # Probability that each node is reached, by the drafter; 0 for nodes that only the drafter itself needs.
    accept_probs: Sequence[float] | None = None
    # Only where a verifier wants them: for each node the row (over the target's vocabulary) that its token was drawn
    # from, None where it was chosen instead. Siblings lie in the order they were drawn and may share a row.
    draft_probs: Any = None
    # False where a drawn node was dropped because of its own token or of one drawn beside or below it (reranking).
    shape_is_fixed: bool = True
    # For each node the name of what proposed it, where several may have; "" and None: the drafter that was asked.
    sources: Sequence[str] | None = None

    @classmethod
    def chain(cls, known: Sequence[int], drafted: Sequence[int] = ()) -> "DraftTree":
        """A tree of width 1: the committed tokens, then one draft token after the other."""
        num_nodes = len(known) + len(drafted)
        return cls([*known, *drafted], range(-1, num_nodes - 1), len(known))

    @property
    def has_drawn_nodes(self) -> bool:
        """Whether any node has the row it was sampled from."""
        return self.draft_probs is not None and any(row is not None for row in self.draft_probs)

    @property
    def num_nodes(self) -> int:
        """Committed and drafted nodes together."""
        return len(self.token_ids)

    @property
    def num_drafted(self) -> int:
        """Nodes that are draft tokens."""
        return len(self.token_ids) - self.num_known

    @property
    def is_chain(self) -> bool:
        """Whether every node has at most one child."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def depths(self) -> list[int]:
        """Distance of each node from the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    @cached_property
    def children(self) -> list[dict[int, int]]:
        """For each node, its children as {token id: node}."""
        children: list[dict[int, int]] = [{} for _ in self.token_ids]
        for node in range(1, self.num_nodes):
            children[self.parents[node]][self.token_ids[node]] = node
        return children

    def path_to(self, node: int) -> list[int]:
        """Nodes from the root to `node`, both included."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def named(self, source: str) -> "DraftTree":
        """With a name for what proposed its nodes; those that have one keep it."""
        if not self.num_drafted or self.sources is not None:
            return self
        return replace(self, sources=[source] * self.num_nodes)

    def pruned(self, max_depth: int) -> "DraftTree":
        """Without the drafted nodes deeper than `max_depth`; the same tree if there are none.

        Depth says nothing about what was drawn, so a fixed shape stays one.
        """
        if self.num_nodes - 1 <= max_depth or max(self.depths) <= max_depth:
            return self
        keep = [n for n in range(self.num_nodes) if n < self.num_known or self.depths[n] <= max_depth]
        return replace(self.subset(keep), shape_is_fixed=self.shape_is_fixed)

    def subset(self, keep: Sequence[int]) -> "DraftTree":
        """The tree of the nodes `keep` (ascending; with every node its parent).

        Why these nodes is not known here, so where any is left out the shape no longer counts as fixed.
        """
        new_index = {old: new for new, old in enumerate(keep)}
        new_index[-1] = -1
        probs = self.accept_probs
        return DraftTree(
            [self.token_ids[n] for n in keep],
            [new_index[self.parents[n]] for n in keep],
            self.num_known,
            None if probs is None else [probs[n] for n in keep],
            None if self.draft_probs is None else [self.draft_probs[n] for n in keep],
            self.shape_is_fixed and len(keep) == self.num_nodes,
            None if self.sources is None else [self.sources[n] for n in keep],
        )

    def check(self, vocab_size: int | None = None) -> None:
        """Raise `AssertionError` with the values if this is not a valid tree."""
        num_nodes = self.num_nodes
        assert num_nodes >= 1, "a tree has at least its root"
        assert len(self.parents) == num_nodes, f"{len(self.parents)} parents for {num_nodes} tokens"
        assert 1 <= self.num_known <= num_nodes, f"{self.num_known = } of {num_nodes} nodes"
        assert self.parents[0] == -1, f"the root's parent is {self.parents[0]}, not -1"
        seen: set[tuple[int, int]] = set()
        for node in range(1, num_nodes):
            parent, token = self.parents[node], self.token_ids[node]
            assert 0 <= parent < node, f"{parent = } of {node = } does not point backwards"
            if node < self.num_known:
                assert parent == node - 1, f"known {node = } has {parent = }; committed nodes form a chain"
            else:
                assert parent >= self.num_known - 1, f"{node = } hangs off {parent = }, before the last committed node"
            assert (parent, token) not in seen, f"{node = }: {parent = } has two children {token}"
            seen.add((parent, token))
        for name in ("accept_probs", "draft_probs", "sources"):
            values = getattr(self, name)
            assert values is None or len(values) == num_nodes, f"{name} has {len(values)} of {num_nodes} entries"
        if vocab_size is not None:
            assert all(0 <= t < vocab_size for t in self.token_ids), f"token ids outside [0, {vocab_size})"
