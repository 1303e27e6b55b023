"""How sure a figure is: bootstrap intervals over prompts [efron79].

Prompts are drawn with replacement, the same ones for both sides of a ratio (pairs stay together), so that an easy
prompt makes both sides faster and says nothing about the ratio.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 4000
_LEVEL = 0.95
_SEED = 20221130


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; the interval is None where one prompt is all there is."""

    value: float
    low: float | None = None
    high: float | None = None

    def as_json(self) -> dict[str, float | None]:
        """For the result file."""
        return {"value": self.value, "low": self.low, "high": self.high}


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
    table = np.stack(columns)  # (2 or 4, prompts)
    num_prompts = table.shape[1]
    value = float(_ratio(table.sum(axis=1)))
    if num_prompts < 2:
        return Estimate(value)
    rng = np.random.default_rng(_SEED)
    draws = rng.integers(num_prompts, size=(NUM_RESAMPLES, num_prompts))
    low, high = np.quantile(_ratio(table[:, draws].sum(axis=2)), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def _ratio(sums: np.ndarray) -> np.ndarray:
    """Of sums over prompts: (2 or 4, ...) to (...)."""
    rate = sums[0] / sums[1]
    return rate if len(sums) == 2 else rate * sums[3] / sums[2]
