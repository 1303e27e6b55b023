"""Steps without a thought: while nothing is drafted for any request, plans stay as they are and what passes took is only added up.

After a pass the processor's caches hold the model's weights, so that a decision of a few microseconds takes some 0.1 ms: more
than 1 % of a small model's plain step. A request that has nothing to decide for a few steps should not pay that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.adapt.own_time import OwnTime
from foreword.draft.base import Plan
from foreword.engine.request import Request
from foreword.engine.step import StepTimes

MOST_STEPS = 16  # pass costs want to be looked at now and then


@dataclass
class Rest:
    """Plain steps of the same requests; seconds are sums over those that have been."""

    requests: Sequence[Request] = ()
    plans: list[Plan] = field(default_factory=list)
    num_left: int = 0
    usual_s: float = 0.0  # of a pass
    num_steps: int = 0
    target_s: float = 0.0
    draft_s: float = 0.0
    host_s: float = 0.0
    is_on: bool = False  # whether the step that runs now is one of them

    def take(self, requests: Sequence[Request]) -> bool:
        """Whether the next step of these requests belongs to it."""
        self.is_on = (
            self.num_left > 0 and len(requests) == len(self.requests) and all(map(_is, requests, self.requests))
        )
        self.num_left -= self.is_on
        return self.is_on

    def add(self, times: StepTimes, own: OwnTime) -> None:
        """One of its steps is over. A stall counts as twice the usual."""
        self.num_steps += 1
        self.target_s += min(times.target_s, 2 * self.usual_s)
        self.draft_s += times.draft_s
        _, host_s = own.split(times.host_s, self.usual_s)  # the controller's own is nobody's: nobody is asked in a rest
        self.host_s += host_s


def _is(one: Request, other: Request) -> bool:
    return one is other
