"""Plans that are used again for some steps; what those steps took is learnt afterwards, together.

After a pass the processor's caches hold the model's weights, so that planning, some microseconds in a loop of its own, takes 0.2 ms
of a small model's step of 5. Sixteen steps that are learnt from together cost little more than one.

Plans are used again where nothing would be decided anew: while drafting is off until it may be retried, and where it pays so well
that all that is proposed is read. The second may cost part of what the request has saved and no more, so that the slowdown budget
holds were all of it wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.draft.base import Plan
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes

MOST_OFF = 16  # steps: what passes cost wants to be looked at now and then
MOST_ON = 8


@dataclass(frozen=True)
class PastStep:
    """What is learnt from a step."""

    contexts: Sequence[int]  # committed tokens of each request before it
    record: StepRecord
    times: StepTimes


@dataclass
class PlanCache:
    """The plans of the same requests for the next steps; empty where they are decided anew."""

    requests: Sequence[Request] = ()
    plans: list[Plan] = field(default_factory=list)
    num_left: int = 0  # steps
    allowance_s: float = 0.0  # what drafting may still cost, were all of it wrong
    past: list[PastStep] = field(default_factory=list)
    is_used: bool = False  # whether the step that runs now uses it

    def take(self, requests: Sequence[Request]) -> bool:
        """Whether the next step of these requests uses it."""
        self.is_used = (
            self.num_left > 0
            and len(requests) == len(self.requests)
            and all(
                request is own and request.remaining > plan.depth  # near its end less is drafted
                for request, own, plan in zip(requests, self.requests, self.plans, strict=True)
            )
        )
        self.num_left -= self.is_used
        return self.is_used

    def spend(self, seconds: float) -> bool:
        """Take the cost of drafting from the allowance; where that is used up, plans are decided anew."""
        self.allowance_s -= seconds
        if self.allowance_s < 0:
            self.is_used, self.num_left = False, 0
        return self.is_used
