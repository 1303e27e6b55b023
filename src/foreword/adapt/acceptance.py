"""How likely drafted tokens are to be accepted: the drafter's own confidence, corrected by what happened to it.

A drafter states for every node the chance that it is reached; on the edge from its parent that is a raw probability q. What became of
edges with about the same q tells how far it can be trusted, as a factor on the odds:

    odds(calibrated) = odds(q) * odds(share accepted) / odds(mean q)      within a bin of q

The bins are common to all requests of a drafter and forget slowly. On top, each request has its own factor: the accepted over the
expected edges so far. Both start at "as stated" and move with the evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.tree.draft_tree import DraftTree

_NUM_BINS = 20
_PRIOR = 8.0  # edges that the drafter's own word counts for
_REQUEST_PRIOR = 6.0
_KEEP = 0.998  # of a bin's evidence, each time it grows
_LEAST, _MOST = 1e-3, 1 - 1e-3  # no chance is stated more firmly than this
NO_WORD = 0.5  # taken for edges of drafters that state no chances

Edge = tuple[float, bool]  # stated chance, whether it was accepted


@dataclass
class _Bin:
    tried: float = 0.0
    accepted: float = 0.0
    stated: float = 0.0  # sum of q
    factor: float = 1.0  # on the odds

    def add(self, stated: float, accepted: bool) -> None:
        self.tried = self.tried * _KEEP + 1
        self.accepted = self.accepted * _KEEP + accepted
        self.stated = self.stated * _KEEP + stated
        mean = self.stated / self.tried
        found = (self.accepted + _PRIOR * mean) / (self.tried + _PRIOR)
        found = min(max(found, _LEAST), _MOST)
        self.factor = found * (1 - mean) / ((1 - found) * mean)


class Calibration:
    """From stated to calibrated chances, for one drafter."""

    def __init__(self) -> None:
        self._bins = [_Bin() for _ in range(_NUM_BINS)]

    def __call__(self, stated: float) -> float:
        """The calibrated chance of an edge."""
        stated = min(max(stated, _LEAST), _MOST)
        odds = stated * self._bins[int(stated * _NUM_BINS)].factor
        return odds / (1 - stated + odds)

    def add(self, edges: Sequence[Edge]) -> None:
        """What became of some edges."""
        for stated, accepted in edges:
            stated = min(max(stated, _LEAST), _MOST)
            self._bins[int(stated * _NUM_BINS)].add(stated, accepted)


@dataclass
class Trust:
    """One request's own factor on calibrated chances."""

    expected: float = field(default=_REQUEST_PRIOR)
    accepted: float = field(default=_REQUEST_PRIOR)

    @property
    def factor(self) -> float:
        """Accepted over expected edges."""
        return min(max(self.accepted / self.expected, 0.05), 1.5)

    def add(self, expected: float, accepted: float, num_steps: int = 1) -> None:
        """The edges of one step, or of several without any; the evidence of some forty steps counts."""
        kept = 0.95**num_steps
        self.expected = kept * (self.expected - _REQUEST_PRIOR) + _REQUEST_PRIOR + expected
        self.accepted = kept * (self.accepted - _REQUEST_PRIOR) + _REQUEST_PRIOR + accepted


def stated_edges(tree: DraftTree) -> list[float]:
    """The chance that the drafter gives each node once its parent is reached; 1 for known nodes.

    0 is no guess at all: such nodes are read for the drafter's own sake (lookahead's window).
    """
    probs = tree.accept_probs
    edges = [1.0] * tree.num_nodes
    for node in range(tree.num_known, tree.num_nodes):
        if probs is None:
            edges[node] = NO_WORD
        else:
            parent = probs[tree.parents[node]]
            edges[node] = min(probs[node] / parent, 1.0) if parent > 0 else 0.0
    return edges


def reach_chances(tree: DraftTree, calibration: Calibration, trust: Trust) -> list[float]:
    """The calibrated chance that each node is reached; siblings share at most 1."""
    chances = [1.0] * tree.num_nodes
    factor = trust.factor
    left = [1.0] * tree.num_nodes  # of each node, what its children have not taken
    for node, stated in enumerate(stated_edges(tree)):
        if node >= tree.num_known:
            parent = tree.parents[node]
            edge = min(calibration(stated) * factor, left[parent]) if stated > 0 else 0.0
            left[parent] -= edge
            chances[node] = chances[parent] * edge
    return chances


def judged_edges(tree: DraftTree, path: Sequence[int]) -> list[Edge]:
    """The edges that a verdict decided: from the nodes of the accepted path to each of their children."""
    if tree.num_drafted == 0:
        return []
    reached = set(path) | {tree.num_known - 1}
    edges = stated_edges(tree)
    return [
        (edges[node], node in reached)
        for node in range(tree.num_known, tree.num_nodes)
        if tree.parents[node] in reached and edges[node] > 0
    ]
