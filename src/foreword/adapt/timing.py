"""What passes cost by their width: timed the first time that a model runs on a machine, kept in the cache."""

import hashlib
import itertools
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foreword.adapt.cost_model import PassCosts
from foreword.cache_folder import cache_folder
from foreword.engine.machine_key import machine_facts
from foreword.files import write_whole
from foreword.runtime.base import Decoder
from foreword.runtime.timed_passes import time_passes
from foreword.target.target import Target

logger = logging.getLogger(__name__)

WIDTHS = (1, 2, 4, 8, 16, 32)  # nodes
_CONTEXTS = (32, 512)  # committed tokens
_BUDGET_S = 1.2  # for the timed passes: nobody waits longer for a first answer
_ROUNDS, _CHECK_ROUNDS = (3, 12), (5, 5)  # of passes at every width; fewest and most
_SLOW_S = 0.04  # a pass of one node: then all widths would take many seconds, and a few passes must do
_SLOW_WIDTHS, _SLOW_ROUNDS = (1, 4, 16), (1, 2)
_TOLERATED = 1.3  # a kept figure that is wrong by more is measured anew
VERSION = 4  # of kept figures; another one where the kernels have changed what widths cost


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
    way = [
        name,
        model.choice.name,
        model.choice.dtype,
        model.choice.device,
        model.choice.kv_dtype,
        model.choice.isa,
        model.threads,
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
