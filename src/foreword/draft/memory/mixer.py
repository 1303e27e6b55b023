"""How likely a token comes next, by what several sources say of it: a logistic model that learns from every hit and miss.

    evidence      one cell for each source that knows the context: how firmly it names the token, or that it names others
    cell          the share of hits where this was the evidence, as log odds
    chance        1 / (1 + exp(-(bias + sum of weight * log odds over the evidence)))

Cells learn what a source's word is worth, the weights how far sources repeat each other, as in compressors that mix their
models [mahoney05]. Both follow the text within some hundred tokens and keep no token. All numbers are bounded, so no
evidence, however often repeated, drives them anywhere else.
"""

from collections.abc import Sequence
from math import exp, log

import numpy as np
from jaxtyping import Float

from foreword.draft.memory import mixer_prior

MEMORY_5, MEMORY_4, MEMORY_3, MEMORY_2, OWN_TEXT, TABLE = range(
    6
)  # sources; those of the store by tokens of the context
NUM_SOURCES = 6
CELL_BITS = 5
CELLS = 1 << CELL_BITS  # of a source; the first says: it knows the context, and names other tokens
NUM_SETS = 16  # of weights: which sources name the token decides which is used
_LEAST, _MOST = 1e-3, 1 - 1e-3  # no chance is stated more firmly
_MOST_TOTAL = 6.9  # its log odds
_MOST_WEIGHT, _MOST_BIAS = 3.0, 6.0
_RATE, _BIAS_RATE = 0.01, 0.05  # of learning
_PRIOR = 20.0  # hits and misses that a cell's first share counts for
_REMEMBERED = 200.0  # hits and misses that a cell's share counts at most

Evidence = Sequence[int]  # cells, numbered over all sources


class Mixer:
    """Chances of tokens; each set of weights for itself, the cells in common. It begins with what six kinds of requests have taught."""

    def __init__(self) -> None:
        self._weights = [_numbers(row) for row in mixer_prior.WEIGHTS]
        self._biases = _numbers(mixer_prior.BIASES[0])
        self._shares = [share for row in mixer_prior.SHARES for share in _numbers(row)]
        self._counts = [_PRIOR] * len(self._shares)
        self._odds = [_log_odds(share) for share in self._shares]

    def chance(self, which: int, evidence: Evidence) -> float:
        """That a token of which the sources say this comes next.

        Args:
            which: set of weights, 0 to `NUM_SETS` - 1.
            evidence: one cell for each source that knows the context.
        """
        weights, odds = self._weights[which], self._odds
        total = self._biases[which]
        for cell in evidence:
            total += weights[cell >> CELL_BITS] * odds[cell]
        if total > _MOST_TOTAL:
            return _MOST
        return 1.0 / (1.0 + exp(-total)) if total > -_MOST_TOTAL else _LEAST

    def learn(self, which: int, evidence: Evidence, chance: float, hit: bool) -> None:
        """Whether a token that was given this chance came."""
        error = hit - chance
        weights, odds = self._weights[which], self._odds
        self._biases[which] = _within(self._biases[which] + _BIAS_RATE * error, _MOST_BIAS)
        for cell in evidence:
            source = cell >> CELL_BITS
            weights[source] = _within(weights[source] + _RATE * error * odds[cell], _MOST_WEIGHT)
            count = self._counts[cell] = min(self._counts[cell] + 1.0, _REMEMBERED)
            share = self._shares[cell] + (hit - self._shares[cell]) / count
            share = self._shares[cell] = min(max(share, _LEAST), _MOST)
            odds[cell] = log(share / (1.0 - share))

    def log_odds(self, cell: int) -> float:
        """What a cell has come to."""
        return self._odds[cell]

    @property
    def state(self) -> Float[np.ndarray, " numbers"]:
        """All that it has learned, as numbers; they say nothing of the text."""
        return np.asarray([*sum(self._weights, []), *self._biases, *self._shares, *self._counts], dtype=np.float64)

    @state.setter
    def state(self, numbers: Float[np.ndarray, " numbers"]) -> None:
        """Go on from there. `ValueError` where these are no such numbers."""
        first, size = NUM_SETS * NUM_SOURCES, len(self._shares)
        if numbers.shape != (first + NUM_SETS + 2 * size,) or not np.isfinite(numbers).all():
            raise ValueError(f"{numbers.shape} numbers, not all finite or not as many as a mixer has")
        weights, biases, shares, counts = np.split(numbers, [first, first + NUM_SETS, first + NUM_SETS + size])
        self._weights = np.clip(weights, -_MOST_WEIGHT, _MOST_WEIGHT).reshape(NUM_SETS, NUM_SOURCES).tolist()
        self._biases = np.clip(biases, -_MOST_BIAS, _MOST_BIAS).tolist()
        self._shares = np.clip(shares, _LEAST, _MOST).tolist()
        self._counts = np.clip(counts, 1.0, _REMEMBERED).tolist()
        self._odds = [_log_odds(share) for share in self._shares]


def _numbers(row: str) -> list[float]:
    return [float(number) for number in row.split()]


def _log_odds(share: float) -> float:
    return log(share / (1.0 - share))


def _within(value: float, most: float) -> float:
    return min(max(value, -most), most)
