"""Trees grown by confidence: expand the most probable nodes level by level, then keep the most probable of all [eagle2].

    level 1      the root's k candidates                           a pool of candidates;
    level 2      k candidates of each of the best `width` of them    a node's score is the sum of the log-probabilities
    ...                                                              on its path
    rerank       the best `num_nodes` of the pool

A child's score is never above its parent's, so the best nodes always form a tree. The drafter only ever reads the
nodes that are expanded: at most `width` per level.
"""

import math
from collections.abc import Sequence

from foreword.tree.draft_tree import DraftTree


class TreeGrowth:
    """The candidates of one request in one step. Nodes are numbered as they were added; -1 is the root."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []  # log of the chance that the node is reached
        self.expanded: list[int] = []  # ascending: nodes that the drafter reads
        self.frontier: list[int] = []  # ascending: nodes to be expanded next
        self._first_new = 0  # first node of the level that is being added

    def add(self, parent: int, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Candidates after a node (the root, or one of the frontier)."""
        score = 0.0 if parent < 0 else self.scores[parent]
        for token, log_prob in zip(token_ids, log_probs, strict=True):
            self.token_ids.append(token)
            self.parents.append(parent)
            self.scores.append(score + min(log_prob, 0.0))

    def advance(self, width: int) -> list[int]:
        """The best `width` nodes of the level that was added last: the next to be expanded, ascending."""
        level = range(self._first_new, len(self.token_ids))
        self._first_new = len(self.token_ids)
        self.frontier = sorted(self._best(level, width))
        self.expanded.extend(self.frontier)
        return self.frontier

    def path_tokens(self, node: int) -> list[int]:
        """The drafted tokens from the root to a node."""
        tokens = []
        while node >= 0:
            tokens.append(self.token_ids[node])
            node = self.parents[node]
        return tokens[::-1]

    def read_tree(self, root_token: int) -> tuple[DraftTree, list[int]]:
        """What the drafter reads to expand the frontier, the root and all expanded nodes; and the frontier in it."""
        number = {-1: 0} | {node: i for i, node in enumerate(self.expanded, 1)}
        tree = DraftTree(
            [root_token, *(self.token_ids[node] for node in self.expanded)],
            [-1, *(number[self.parents[node]] for node in self.expanded)],
        )
        return tree, [number[node] for node in self.frontier]

    def best(self, known: Sequence[int], num_nodes: int) -> DraftTree:
        """The committed tokens and the best `num_nodes` candidates; of equals those that were added first."""
        kept = sorted(self._best(range(len(self.token_ids)), num_nodes))
        number = {-1: len(known) - 1} | {node: len(known) + i for i, node in enumerate(kept)}
        return DraftTree(
            [*known, *(self.token_ids[node] for node in kept)],
            [*range(-1, len(known) - 1), *(number[self.parents[node]] for node in kept)],
            len(known),
            [*[1.0] * len(known), *(math.exp(self.scores[node]) for node in kept)],
            shape_is_fixed=False,  # which nodes stay depends on what they are
        )

    def _best(self, nodes: range, count: int) -> list[int]:
        return sorted(nodes, key=lambda node: (-self.scores[node], node))[:count]
