"""How sure a measured ratio is: the bootstrap over pairs that were measured side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 2000


@dataclass(frozen=True)
class Ratio:
    """How many times faster, with its 95 % interval."""

    value: float
    low: float
    high: float


def ratio_of(pairs: Sequence[tuple[float, float]], seed: int = 0) -> Ratio:
    """Of the sums: the first times of the pairs over the second ones [efron79].

    Pairs are drawn anew with replacement; one pair alone gives no interval, so its ends are 0 and infinity.
    """
    times = np.asarray(pairs, dtype=np.float64)
    value = float(times[:, 0].sum() / times[:, 1].sum())
    if len(times) < 2:
        return Ratio(value, 0.0, float("inf"))
    drawn = np.random.default_rng(seed).integers(0, len(times), (_RESAMPLES, len(times)))
    sums = times[drawn].sum(axis=1)
    low, high = np.percentile(sums[:, 0] / sums[:, 1], (2.5, 97.5))
    return Ratio(value, float(low), float(high))
