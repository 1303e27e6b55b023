"""What a target pass costs on this machine, by its nodes and its context: measured once, kept, refined as passes run.

    T(pass) = base(nodes of all requests) + sum over requests of slope(its nodes) * its committed tokens

`base` and `slope` are straight lines between the measured widths, and go on as the last one beyond them. What passes take
later corrects the figures: a common factor that follows the machine (other jobs, heat), and slowly each width's own.
"""

import bisect
import hashlib
import json
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from foreword.adapt.timing import time_passes
from foreword.checkpoint.cache import cache_folder
from foreword.files import write_whole
from foreword.runtime.base import Decoder
from foreword.target.target import Target

logger = logging.getLogger(__name__)

WIDTHS = (1, 2, 4, 8, 16, 32)
_CONTEXTS = (32, 512)
_BUDGET_S = 1.2  # for the timed passes
_ROUNDS, _CHECK_ROUNDS = (3, 12), (5, 5)
_TOLERATED = 1.3  # a kept figure that is wrong by more is measured anew
_FOLLOW, _LEARN = 0.08, 0.03  # how fast the common factor and each width's own move
_TABLE = 129  # widths looked up; wider passes are computed
_REDRAW = 16  # passes between two looks at the widths' own factors
VERSION = 1


@dataclass
class PassCosts:
    """Seconds of a pass. `base` and `slope` belong to `widths`, which rise."""

    widths: list[int]
    base: list[float]
    slope: list[float]  # seconds a committed token adds
    common: float = 1.0
    own: list[float] = field(default_factory=list)  # each width's factor

    def __post_init__(self) -> None:
        self.own = self.own or [1.0] * len(self.widths)
        self._num_passes = 0
        self._slopes = [self._line(self.slope, n) for n in range(_TABLE)]
        self._draw_bases()

    def seconds(self, num_nodes: Sequence[int], contexts: Sequence[int]) -> float:
        """One pass over so many nodes of each request, after so many committed tokens of each."""
        total, attention = sum(num_nodes), 0.0
        for nodes, length in zip(num_nodes, contexts, strict=True):
            attention += (self._slopes[nodes] if nodes < _TABLE else self._line(self.slope, nodes)) * length
        base = self._bases[total] if total < _TABLE else self._line(self._owned, total)
        return self.common * (base + attention)

    def refine(self, num_nodes: Sequence[int], contexts: Sequence[int], seconds: float) -> None:
        """A pass took so long."""
        ratio = min(max(seconds / self.seconds(num_nodes, contexts), 0.5), 2.0)
        self.common *= ratio**_FOLLOW
        total = sum(num_nodes)
        nearest = min(range(len(self.widths)), key=lambda i: abs(self.widths[i] - total))
        self.own[nearest] *= ratio**_LEARN
        self._num_passes += 1
        if self._num_passes % _REDRAW == 0:
            self._draw_bases()

    def _draw_bases(self) -> None:
        self._owned = [base * own for base, own in zip(self.base, self.own, strict=True)]
        self._bases = [self._line(self._owned, n) for n in range(_TABLE)]

    def _line(self, values: Sequence[float], n: int) -> float:
        """Between the nearest widths; beyond the last as between the last two."""
        if len(values) == 1:
            return values[0] * n / self.widths[0]
        right = min(max(bisect.bisect_left(self.widths, n), 1), len(self.widths) - 1)
        x0, x1 = self.widths[right - 1], self.widths[right]
        return values[right - 1] + (values[right] - values[right - 1]) * (n - x0) / (x1 - x0)


def measure_costs(decoder: Decoder, widths: Sequence[int] = WIDTHS) -> PassCosts:
    """Time passes of every width after a short and a long context, interleaved, for about a second."""
    room = decoder.spec.context_len - max(widths)
    contexts = sorted({max(1, min(context, room)) for context in _CONTEXTS})
    best = time_passes(decoder, widths, contexts, _ROUNDS, budget_s=_BUDGET_S)
    short, long = contexts[0], contexts[-1]
    span = long - short
    slope = [max(0.0, best[n, long] - best[n, short]) / span if span else 0.0 for n in widths]
    base = [best[n, short] - s * short for n, s in zip(widths, slope, strict=True)]
    return PassCosts(list(widths), _rising(base), slope)


def costs_of(target: Target) -> PassCosts:
    """A target's, kept in the cache folder for each model, way of running it and machine."""
    model = target.model
    fingerprint = getattr(model.checkpoint, "fingerprint", None) if model is not None else None
    if model is None or fingerprint is None:
        return measure_costs(target.decoder)
    threads = getattr(model.runtime, "threads", torch.get_num_threads())
    way = [
        fingerprint,
        model.choice.name,
        model.choice.dtype,
        model.choice.device,
        model.choice.kv_dtype,
        threads,
        _processor(),
    ]
    key = hashlib.sha256(json.dumps(way).encode()).hexdigest()[:24]
    return kept_costs(cache_folder() / "costs" / f"{key}.json", target.decoder)


def _processor() -> list[str | int | None]:
    """What tells this machine from another that shares the cache folder."""
    return [platform.machine(), platform.processor(), platform.node(), os.cpu_count()]


def kept_costs(path: Path, decoder: Decoder) -> PassCosts:
    """The figures in a file; measured and written there where it holds none, or none that are true today."""
    kept = _read(path)
    if kept is not None and _agree(kept, decoder):
        return kept
    costs = measure_costs(decoder)
    facts = {"version": VERSION, "widths": costs.widths, "base": costs.base, "slope": costs.slope}
    try:
        write_whole(path, json.dumps(facts))
    except OSError as error:
        logger.warning("pass costs could not be kept in %s (%s): they are measured again next time", path, error)
    return costs


def _read(path: Path) -> PassCosts | None:
    """None where there are none yet, or another version's."""
    try:
        found = json.loads(path.read_text())
        return PassCosts(**found) if found.pop("version") == VERSION else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _agree(kept: PassCosts, decoder: Decoder) -> bool:
    """Whether a few passes take what the figures say: they may have been taken while the machine was busy."""
    narrow, wide = kept.widths[0], kept.widths[len(kept.widths) // 2]
    context = max(1, min(_CONTEXTS[0], decoder.spec.context_len - wide))
    found = time_passes(decoder, (narrow, wide), [context], _CHECK_ROUNDS)
    ratios = [found[n, context] / kept.seconds([n], [context]) for n in (narrow, wide)]
    return max(ratios) < _TOLERATED and min(ratios) > 1 / _TOLERATED


def _rising(values: list[float]) -> list[float]:
    """No wider pass is cheaper: what says so is noise."""
    for i in range(1, len(values)):
        values[i] = max(values[i], values[i - 1])
    return values
