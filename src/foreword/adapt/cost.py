"""What a target pass costs on this machine, by its nodes and its context: measured once, kept, refined as passes run.

    T(pass) = base(nodes of all requests) + sum over requests of slope(its nodes) * its committed tokens

`base` and `slope` are straight lines between the measured widths, and go on as the last one beyond them. What passes take
later corrects the figures: a common factor that follows the machine (other jobs, heat), and slowly each width's own.
"""

import bisect
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from foreword.adapt.timing import time_passes
from foreword.cache_folder import cache_folder
from foreword.engine.machine_key import machine_facts
from foreword.files import write_whole
from foreword.runtime.base import Decoder
from foreword.target.target import Target

logger = logging.getLogger(__name__)

WIDTHS = (1, 2, 4, 8, 16, 32)
_CONTEXTS = (32, 512)
_BUDGET_S = 1.2  # for the timed passes
_ROUNDS, _CHECK_ROUNDS = (3, 12), (5, 5)
_SLOW_S = 0.04  # a pass of one node: then a full look would take many seconds, and a few passes must do
_SLOW_WIDTHS, _SLOW_ROUNDS = (1, 4, 16), (1, 2)
_TOLERATED = 1.3  # a kept figure that is wrong by more is measured anew
_FOLLOW, _LEARN = 0.08, 0.03  # how fast the common factor and each width's own move
_TABLE = 129  # widths looked up; wider passes are computed
_REDRAW = 32  # passes between two looks at the widths' own factors
VERSION = 2  # of kept figures; another one where the kernels have changed what widths cost


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
        self._places = [self._place(n) for n in range(_TABLE)]
        self._nearest = [min(range(len(self.widths)), key=lambda i: abs(self.widths[i] - n)) for n in range(_TABLE)]
        self._draw_bases()

    def seconds(self, num_nodes: Sequence[int], contexts: Sequence[int]) -> float:
        """One pass over so many nodes of each request, after so many committed tokens of each."""
        if len(num_nodes) == 1 and num_nodes[0] < _TABLE:
            nodes = num_nodes[0]
            return self.common * (self._bases[nodes] + self._slopes[nodes] * contexts[0])
        total, attention = sum(num_nodes), 0.0
        for nodes, length in zip(num_nodes, contexts, strict=True):
            attention += (self._slopes[nodes] if nodes < _TABLE else self._line(self.slope, nodes)) * length
        base = self._bases[total] if total < _TABLE else self._line(self._owned, total)
        return self.common * (base + attention)

    def added(self, nodes: int, context: int) -> float:
        """What one node more adds to a pass over so many of one request."""
        if nodes + 1 >= _TABLE:
            return self.seconds([nodes + 1], [context]) - self.seconds([nodes], [context])
        more_attention = (self._slopes[nodes + 1] - self._slopes[nodes]) * context
        return self.common * (self._bases[nodes + 1] - self._bases[nodes] + more_attention)

    def refine(self, num_nodes: Sequence[int], contexts: Sequence[int], seconds: float, num_passes: int = 1) -> float:
        """A pass took so long, or several did in the mean; returns what such a pass is now thought to take."""
        thought_s = self.seconds(num_nodes, contexts)
        ratio = min(max(seconds / thought_s, 0.5), 2.0)
        moved = ratio ** (1 - (1 - _FOLLOW) ** num_passes)
        self.common *= moved
        self.own[self._nearest[min(sum(num_nodes), _TABLE - 1)]] *= ratio ** (1 - (1 - _LEARN) ** num_passes)
        self._num_passes += num_passes
        if self._num_passes % _REDRAW >= num_passes:
            return thought_s * moved
        self._draw_bases()
        return self.seconds(num_nodes, contexts)

    def _draw_bases(self) -> None:
        self._owned = [base * own for base, own in zip(self.base, self.own, strict=True)]
        owned = self._owned
        self._bases = [owned[left] + (owned[right] - owned[left]) * share for left, right, share in self._places]

    def _place(self, n: int) -> tuple[int, int, float]:
        """The widths that a number of nodes lies between, and how far along; beyond the last goes on as before it."""
        if len(self.widths) == 1:
            return 0, 0, 0.0
        right = min(max(bisect.bisect_left(self.widths, n), 1), len(self.widths) - 1)
        x0, x1 = self.widths[right - 1], self.widths[right]
        return right - 1, right, (n - x0) / (x1 - x0)

    def _line(self, values: Sequence[float], n: int) -> float:
        """Between the nearest widths; beyond the last as between the last two."""
        left, right, share = self._place(n)
        return values[left] + (values[right] - values[left]) * share


def measure_costs(decoder: Decoder, widths: Sequence[int] = WIDTHS) -> PassCosts:
    """Time passes of every width after a short and a long context, interleaved, for about a second.

    Where one pass takes so long that this would be many seconds, a few widths after a short context have to do.
    """
    widths = [n for n in widths if n < decoder.spec.context_len] or [1]
    room = max(1, decoder.spec.context_len - max(widths))
    contexts, rounds = sorted({min(context, room) for context in _CONTEXTS}), _ROUNDS
    if time_passes(decoder, (1,), contexts[:1], (1, 1))[1, contexts[0]] > _SLOW_S:
        widths, contexts, rounds = [n for n in _SLOW_WIDTHS if n in widths], contexts[:1], _SLOW_ROUNDS
    best = time_passes(decoder, widths, contexts, rounds, budget_s=_BUDGET_S)
    short, long = contexts[0], contexts[-1]
    span = long - short
    slope = [max(0.0, best[n, long] - best[n, short]) / span if span else 0.0 for n in widths]
    base = [best[n, short] - s * short for n, s in zip(widths, slope, strict=True)]
    return PassCosts(list(widths), _rising(base), slope)


def costs_of(target: Target) -> PassCosts:
    """A target's, kept in the cache folder for each model, way of running it and machine."""
    model = target.model
    name = None if model is None else _name(model.checkpoint)
    if model is None or name is None:
        return measure_costs(target.decoder)
    threads = getattr(model.runtime, "threads", torch.get_num_threads())
    way = [
        name,
        model.choice.name,
        model.choice.dtype,
        model.choice.device,
        model.choice.kv_dtype,
        threads,
        machine_facts(),
    ]
    key = hashlib.sha256(json.dumps(way).encode()).hexdigest()[:24]
    return kept_costs(cache_folder() / "costs" / f"{key}.json", target.decoder)


def _name(checkpoint: Any) -> str | None:
    """What tells a model from others; of one that another library holds, its name and size. None where it has neither."""
    source = getattr(checkpoint, "source", None)
    return getattr(checkpoint, "fingerprint", None) or (source and f"{source}/{checkpoint.spec.num_parameters}")


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
        logger.info("pass costs could not be kept in %s (%s): they are measured again next time", path, error)
    return costs


def _read(path: Path) -> PassCosts | None:
    """None where there are none yet, or another version's."""
    try:
        found = json.loads(path.read_text())
        return PassCosts(**found) if found.pop("version") == VERSION and _is_sound(**found) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _is_sound(widths: list[int], base: list[float], slope: list[float]) -> bool:
    """Whether the figures of a file can be used: as many of each, finite, the widths rising."""
    is_rising = all(a < b for a, b in itertools.pairwise(widths)) and all(type(n) is int for n in widths)
    is_finite = all(type(x) is float and math.isfinite(x) for x in base + slope)
    return is_rising and min(base) > 0 and len(base) == len(slope) == len(widths) and is_finite


def _agree(kept: PassCosts, decoder: Decoder) -> bool:
    """Whether a few passes take what the figures say: they may have been taken while the machine was busy.

    Of a slow model one narrow pass has to do.
    """
    narrow, wide = kept.widths[0], kept.widths[len(kept.widths) // 2]
    widths, rounds = ((narrow,), (1, 1)) if kept.base[0] > _SLOW_S else ((narrow, wide), _CHECK_ROUNDS)
    context = max(1, min(_CONTEXTS[0], decoder.spec.context_len - wide))
    found = time_passes(decoder, widths, [context], rounds)
    ratios = [found[n, context] / kept.seconds([n], [context]) for n in widths]
    return max(ratios) < _TOLERATED and min(ratios) > 1 / _TOLERATED


def _rising(values: list[float]) -> list[float]:
    """No wider pass is cheaper: what says so is noise."""
    for i in range(1, len(values)):
        values[i] = max(values[i], values[i - 1])
    return values
