"""Where the time of a step goes: the step stamps the end of each phase, and whoever wants to know reads the times.

The source of time is given, so that a test, or a simulation, decides how it passes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["plan", "draft", "fit", "pack", "target", "verify", "commit", "observe", "learn"]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step, by phase."""

    plan_s: float = 0.0  # the controller decides how much to draft
    draft_s: float = 0.0  # the drafter proposes
    fit_s: float = 0.0  # the controller cuts the proposals
    pack_s: float = 0.0  # grammars, packing, what is asked of the pass
    target_s: float = 0.0  # the target's pass
    verify_s: float = 0.0
    commit_s: float = 0.0  # stop conditions and the rows of the cache
    observe_s: float = 0.0  # the drafter looks at the pass
    learn_s: float = 0.0  # the controller learns from the step before: no part of this one

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.drafter_s + self.planning_s + self.target_s + self.host_s

    @property
    def drafter_s(self) -> float:
        """In the drafter, before and after the pass."""
        return self.draft_s + self.observe_s

    @property
    def planning_s(self) -> float:
        """In the controller, within the step."""
        return self.plan_s + self.fit_s

    @property
    def host_s(self) -> float:
        """In none of drafter, controller and target: packing, verification, bookkeeping."""
        return self.pack_s + self.verify_s + self.commit_s


class StepClock:
    """Seconds since the last stamp, by phase.

    Args:
        now_s: the source of time, in seconds from any beginning.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self._last_s = now_s()
        self._seconds: dict[str, float] = {}

    def start(self) -> None:
        """A step begins."""
        self._last_s = self.now_s()

    def stamp(self, phase: Phase) -> None:
        """This phase of the step is over; each is stamped once a step."""
        now_s = self.now_s()
        self._seconds[f"{phase}_s"] = now_s - self._last_s
        self._last_s = now_s

    def times(self) -> StepTimes:
        """Of the step that has just ended."""
        return StepTimes(**self._seconds)
