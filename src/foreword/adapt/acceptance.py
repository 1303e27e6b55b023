"""How likely drafted tokens are to be accepted: the drafter's own probabilities, calibrated by what became of them.

A drafter states for every node the probability that it is reached; on the edge from its parent that is a raw probability q.
What became of edges with about the same q calibrates it, as a factor on the odds:

    odds(calibrated) = odds(q) * odds(share accepted) / odds(mean q)      within a bin of q

The bins are common to all requests of a drafter and forget slowly. On top, each request has a factor of its own: the accepted
over the expected edges so far. Both start at 1 and move with the evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from foreword.tree.draft_tree import DraftTree

_NUM_BINS = 20
_PRIOR = 6.0  # edges that the drafter's own probabilities count for
_KEEP = 0.998  # of a bin's evidence, each time it grows: some 500 edges count
_KEEP_OF_REQUEST = 0.95  # of a request's evidence, at each step: some twenty steps count
_LEAST_FACTOR, _MOST_FACTOR = 0.05, 1.5  # of a request: it can be far worse than others, hardly better
_LEAST, _MOST = 1e-3, 1 - 1e-3  # no probability is stated more firmly than this
UNSTATED = 0.5  # taken for edges of drafters that state no probabilities

Edge = tuple[float, bool]  # stated probability, whether it was accepted


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
    """From stated to calibrated probabilities, for one drafter."""

    def __init__(self) -> None:
        self._bins = [_Bin() for _ in range(_NUM_BINS)]

    def __call__(self, stated: float) -> float:
        """The calibrated probability of an edge."""
        stated = min(max(stated, _LEAST), _MOST)
        odds = stated * self._bins[int(stated * _NUM_BINS)].factor
        return odds / (1 - stated + odds)

    def add(self, edges: Sequence[Edge]) -> None:
        """What became of some edges."""
        for stated, accepted in edges:
            stated = min(max(stated, _LEAST), _MOST)
            self._bins[int(stated * _NUM_BINS)].add(stated, accepted)


@dataclass
class RequestAcceptance:
    """One request's own factor on calibrated probabilities."""

    expected: float = _PRIOR
    accepted: float = _PRIOR

    @property
    def factor(self) -> float:
        """Accepted over expected edges."""
        return min(max(self.accepted / self.expected, _LEAST_FACTOR), _MOST_FACTOR)

    def add(self, expected: float, accepted: float) -> None:
        """The edges of one step; 0 and 0 for a step without any, which forgets."""
        self.expected = _KEEP_OF_REQUEST * (self.expected - _PRIOR) + _PRIOR + expected
        self.accepted = _KEEP_OF_REQUEST * (self.accepted - _PRIOR) + _PRIOR + accepted


def stated_edges(tree: DraftTree) -> list[float]:
    """The probability that the drafter gives each node once its parent is reached; 1 for committed nodes.

    0 is no guess at all: such nodes are read for the drafter's own sake (lookahead's window).
    """
    probs = tree.accept_probs
    edges = [1.0] * tree.num_nodes
    for node in range(tree.num_known, tree.num_nodes):
        if probs is None:
            edges[node] = UNSTATED
        else:
            parent = probs[tree.parents[node]]
            edges[node] = min(probs[node] / parent, 1.0) if parent > 0 else 0.0
    return edges


def reach_probs(tree: DraftTree, calibration: Calibration, request_factor: float) -> list[float]:
    """The calibrated probability that each node is reached; siblings share at most their parent's."""
    probs = [1.0] * tree.num_nodes
    left = [1.0] * tree.num_nodes  # of each node, what its children have not taken
    for node, stated in enumerate(stated_edges(tree)):
        if node >= tree.num_known:
            parent = tree.parents[node]
            edge = min(calibration(stated) * request_factor, left[parent]) if stated > 0 else 0.0
            left[parent] -= edge
            probs[node] = probs[parent] * edge
    return probs


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
