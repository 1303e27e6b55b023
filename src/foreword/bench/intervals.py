"""How sure a figure is: bootstrap intervals over prompts, or over pairs that were timed side by side [efron79].

Prompts are drawn with replacement, the same ones for both sides of a ratio (pairs stay together), so that an easy
prompt makes both sides faster and says nothing about the ratio.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 4000
_LEVEL = 0.95
_SEED = 20221130
TOO_LITTLE = "too little to tell"


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; the interval is None where one prompt is all there is."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """What a speed-up says: "faster" or "slower" than plain decoding, or "too little to tell" where it may be either."""
        if self.low is None or self.high is None or self.low <= 1.0 <= self.high:
            return TOO_LITTLE
        return "faster" if self.low > 1.0 else "slower"

    def as_json(self) -> dict[str, float | None]:
        """For the result file."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Ratio(Estimate):
    """Times as fast, with its 95 % interval; its ends are 0 and infinity where one pair is all there is."""

    low: float = 0.0
    high: float = math.inf


def ratio_of(pairs: Sequence[tuple[float, float]], seed: int = _SEED) -> Ratio:
    """The sum of the first times of the pairs over the sum of the second ones."""
    found = _pooled(np.asarray(pairs, dtype=np.float64).T, seed)
    return Ratio(found.value) if found.low is None or found.high is None else Ratio(found.value, found.low, found.high)


def pooled_rate(amounts: Sequence[float], seconds: Sequence[float]) -> Estimate:
    """Sum of the amounts over sum of the seconds, over all prompts."""
    return ratio_of_rates(amounts, seconds, None, None)


def ratio_of_rates(
    amounts: Sequence[float],
    seconds: Sequence[float],
    base_amounts: Sequence[float] | None,
    base_seconds: Sequence[float] | None,
) -> Estimate:
    """How many times the pooled rate of the base; entry i of all four belongs to the same prompt. No base: the rate."""
    columns = [np.asarray(column, dtype=np.float64) for column in (amounts, seconds)]
    if base_amounts is not None and base_seconds is not None:
        columns += [np.asarray(column, dtype=np.float64) for column in (base_amounts, base_seconds)]
    return _pooled(np.stack(columns), _SEED)


def _pooled(table: np.ndarray, seed: int) -> Estimate:
    """The ratio of the sums over prompts; `table` is (2 or 4, prompts), and prompts are drawn anew with all their rows."""
    num_prompts = table.shape[1]
    value = float(_ratio(table.sum(axis=1)))
    if num_prompts < 2:
        return Estimate(value)
    draws = np.random.default_rng(seed).integers(num_prompts, size=(NUM_RESAMPLES, num_prompts))
    low, high = np.quantile(_ratio(table[:, draws].sum(axis=2)), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def _ratio(sums: np.ndarray) -> np.ndarray:
    """Of sums over prompts: (2 or 4, ...) to (...)."""
    rate = sums[0] / sums[1]
    return rate if len(sums) == 2 else rate / (sums[2] / sums[3])  # of a row to itself exactly 1
