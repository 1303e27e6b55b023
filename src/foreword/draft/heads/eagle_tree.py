"""EAGLE-1's static tree: the same ranks at the same places in every step [eagle24].

Which ranks are worth a node is worked out from how often the candidate of each rank is right (`tree.shapes`).
"""

from collections.abc import Sequence
from typing import final

from foreword.tree.grow import TreeGrowth
from foreword.tree.shapes import TreeShape


@final
class ShapedGrowth(TreeGrowth):
    """Adds the candidates that a shape names and expands those that have children in it."""

    def __init__(self, shape: TreeShape) -> None:
        super().__init__()
        self._wanted = frozenset(shape.paths)
        self._expandable = frozenset(path[:-1] for path in shape.paths)
        self._paths: list[tuple[int, ...]] = []  # ranks to each node

    def add(self, parent: int, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """The candidates after a node whose ranks are in the shape."""
        path = self._paths[parent] if parent >= 0 else ()
        ranks = [rank for rank in range(len(token_ids)) if (*path, rank) in self._wanted]
        super().add(parent, [token_ids[rank] for rank in ranks], [log_probs[rank] for rank in ranks])
        self._paths.extend((*path, rank) for rank in ranks)

    def advance(self, width: int) -> list[int]:
        """The nodes of the level that was added last which have children in the shape; `width` says nothing here."""
        level = range(self._first_new, len(self.token_ids))
        self._first_new = len(self.token_ids)
        self.frontier = [node for node in level if self._paths[node] in self._expandable]
        self.expanded.extend(self.frontier)
        return self.frontier
