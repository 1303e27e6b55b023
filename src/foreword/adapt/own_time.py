"""What deciding takes itself: where a drafter is asked it is part of what speculation costs, and is paid from the same credit as drafts.

While drafting is off it is what being asked at all costs, some 50 us a step: charged too, it would eat up what an overdrawn request earns by
waiting, 1 % of a step, and drafting would never come back.

After a pass the processor's caches hold the model's weights: then a decision of some microseconds takes a tenth of a millisecond.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

_MOST = 0.1  # of a plain pass: more is a stall, such as Python's collection of garbage


@dataclass
class OwnTime:
    """Of a controller, in seconds, since it was last charged."""

    in_step_s: float = 0.0  # planning and choosing: part of what a step takes
    after_step_s: float = 0.0  # learning: comes on top of it

    def split(self, host_s: float, plain_pass_s: float) -> tuple[float, float]:
        """The controller's own time, but no stall, and what is left of a step's time beside drafter and target.

        What learning takes from now on counts for the step after.
        """
        in_step_s, own_s = self.in_step_s, self.in_step_s + self.after_step_s
        self.in_step_s = self.after_step_s = 0.0
        return min(own_s, _MOST * plain_pass_s), max(host_s - in_step_s, 0.0)


def counted(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds what a controller's method takes to that part of its `own` time."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(self: Any, *args: Any) -> Any:
            start_s = time.perf_counter()
            try:
                return method(self, *args)
            finally:
                setattr(self.own, kind, getattr(self.own, kind) + time.perf_counter() - start_s)

        return timed

    return decorate
