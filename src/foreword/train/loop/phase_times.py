"""How long a run's phases took, over all its sessions."""

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from foreword.files import put_aside, write_whole

logger = logging.getLogger(__name__)


class Times:
    """Seconds spent in each phase, over all sessions. This one began at `begun_s` of `clock`."""

    def __init__(self, path: Path, begun_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._path, self._uncounted_s = path, clock() if begun_s is None else begun_s
        self.values = _read(path)

    @property
    def total_s(self) -> float:
        """Of all phases that are over."""
        return sum(self.values.values())

    @property
    def spent_s(self) -> float:
        """What no phase has counted yet included."""
        return self.total_s + self.clock() - self._uncounted_s

    def counting(self, name: str) -> "Counting":
        """For a `with` block that is a phase."""
        return Counting(self, name)

    def count_rest(self) -> None:
        """Loading and whatever else no phase has counted belongs to the budget too."""
        self.add("loading", self.clock() - self._uncounted_s)

    def add(self, name: str, seconds: float) -> None:
        """A phase took so long."""
        self._uncounted_s += seconds
        self.values[name] = self.values.get(name, 0.0) + seconds
        write_whole(self._path, json.dumps(self.values))


class Counting:
    """Adds the time of a block, also where it ends by an error."""

    def __init__(self, times: Times, name: str) -> None:
        self._times, self._name = times, name

    def __enter__(self) -> None:
        self._start_s = self._times.clock()

    def __exit__(self, *_: object) -> None:
        self._times.add(self._name, self._times.clock() - self._start_s)


def _read(path: Path) -> dict[str, float]:
    """Of earlier sessions; none where the file is damaged, which is told."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict) or not all(
            type(x) in (int, float) and 0 <= x < math.inf for x in values.values()
        ):
            raise ValueError("it is no table of seconds")
    except (ValueError, RecursionError) as error:
        aside = put_aside(path)
        logger.warning("%s is damaged (%s): it is now %s, and the time budget begins anew", path, error, aside.name)
        return {}
    return values
