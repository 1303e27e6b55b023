"""How many threads pay: fewer than all cores where measured passes say that more do not help.

Reading weights keeps a few cores' worth of memory busy, slow cores of a hybrid processor hold the fast ones up, and a
machine in the cloud may have fewer cores than it says. Numbers are raced against each other in turn, from all cores down,
until fewer are slower. The bits of a pass do not depend on it.
"""

import json
import logging
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from foreword.files import write_whole
from foreword.runtime.base import Decoder
from foreword.runtime.cpu_cores import Core
from foreword.runtime.timed_passes import time_passes

logger = logging.getLogger(__name__)

Race = Callable[[int, int], list[float]]  # two numbers of threads: seconds with the second over the first, by round

_NO_SLOWER = 1.02  # fewer threads that are so close leave cores to others
_NOISE = 1.25  # slowest over fastest round of a race whose rounds disagree: beyond it something else runs, and nothing is learned
_ROUNDS, _SLOW_ROUNDS = 5, 2
_WIDTHS, _CONTEXT = (1, 8), 32
_SLOW_WIDTHS, _SLOW_CONTEXT = (1,), 8
_SLOW_S = 0.04  # a pass of one node: then few passes must do
_VERSION = 1


def numbers_to_try(cores: Sequence[Core], most: int) -> list[int]:
    """Falling from `most`: the fast cores alone where there are two kinds, then halves, down to one."""
    fast = sum(core.kind == "P" for core in cores)
    halves = [most >> shift for shift in range(most.bit_length())]
    return sorted({n for n in (fast, *halves) if 0 < n <= most}, reverse=True)


def fewest_that_suffice(numbers: Sequence[int], race: Race) -> int | None:
    """The first of `numbers`, or a later one that is no slower; None where the machine is too busy to tell."""
    best = numbers[0]
    for fewer in numbers[1:]:
        ratios = sorted(race(best, fewer))
        inner = ratios[1:-1] or ratios  # without a stall or two
        if inner[0] <= _NO_SLOWER < inner[-1] and inner[-1] > _NOISE * inner[0]:
            return None
        if statistics.median(ratios) > _NO_SLOWER:
            break
        best = fewer
    return best


def race_on(decoder: Decoder, resize: Callable[[int], None]) -> Race:
    """Passes of one node and of eight, with both numbers of threads in turn."""
    is_slow = time_passes(decoder, (1,), (_SLOW_CONTEXT,), (1, 1))[1, _SLOW_CONTEXT] > _SLOW_S
    widths, context, rounds = (_SLOW_WIDTHS, _SLOW_CONTEXT, _SLOW_ROUNDS) if is_slow else (_WIDTHS, _CONTEXT, _ROUNDS)

    def seconds(num_threads: int) -> float:
        resize(num_threads)
        times = time_passes(decoder, widths, (context,), (1, 1), warm_up=2).values()
        return math.exp(statistics.fmean(map(math.log, times)))

    def race(first: int, second: int) -> list[float]:
        pairs = [(seconds(first), seconds(second)) for _ in range(rounds)]
        return [of_second / of_first for of_first, of_second in pairs]

    return race


def kept_choice(path: Path, allowed: Sequence[int]) -> int | None:
    """What was found here before; None where nothing was, or for other cores."""
    try:
        found = json.loads(path.read_text())
        return found["threads"] if found["version"] == _VERSION and found["threads"] in allowed else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def keep_choice(path: Path, num_threads: int) -> None:
    """For the next start."""
    try:
        write_whole(path, json.dumps({"version": _VERSION, "threads": num_threads}))
    except OSError as error:
        logger.info("the number of threads could not be kept in %s (%s): it is measured again next time", path, error)
