"""Steps that draft without a thought: while that pays, all that is proposed is read, and is learnt from a few steps later.

Behind a pass the processor's caches are cold (`rest`), and a step's thoughts take 0.2 ms. Thought of together, eight steps cost
little more than one. A request strides only on what it has won itself: what drafts add to its passes, were they all wrong, and what
asking for them takes may be half of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foreword.adapt.own_time import OwnTime
from foreword.draft.base import Plan
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes

STEPS = 8
_STAKE = 0.5  # of what the request has saved
_PAYS = 1.03  # times plain decoding, lately
_REASON = f"drafts pay: all that is proposed is read for {STEPS} steps"


@dataclass(frozen=True)
class PastStep:
    """What is learnt from a step, which may be later."""

    contexts: Sequence[int]  # committed tokens of each request before it
    record: StepRecord
    times: StepTimes
    own_s: float  # of the controller
    host_s: float  # beside drafter, target and controller


def past_step(
    requests: Sequence[Request], record: StepRecord, times: StepTimes, own: OwnTime, pass_s: float
) -> PastStep:
    """The step that has just been; `pass_s` is what a plain pass takes."""
    contexts = [request.kv_len - emitted for request, emitted in zip(requests, record.num_emitted, strict=True)]
    return PastStep(contexts, record, times, *own.split(times.host_s, pass_s))


@dataclass
class Stride:
    """Of one request that is alone."""

    requests: Sequence[Request] = ()
    plans: list[Plan] = field(default_factory=list)
    num_left: int = 0
    left_s: float = 0.0  # what drafting may still cost
    past: list[PastStep] = field(default_factory=list)
    is_on: bool = False  # whether the step that runs now is one of them

    def take(self, requests: Sequence[Request]) -> bool:
        """Whether the next step of these requests belongs to it."""
        self.is_on = (
            self.num_left > 0
            and len(requests) == 1
            and requests[0] is self.requests[0]
            and requests[0].remaining > self.plans[0].depth  # near its end less is drafted
        )
        self.num_left -= self.is_on
        return self.is_on

    def spend(self, added_s: float) -> bool:
        """Whether a step may be longer by so much; where it may not, the stride is over."""
        self.left_s -= added_s
        if self.left_s < 0:
            self.is_on, self.num_left = False, 0
        return self.is_on


def begin_stride(request: Request, plan: Plan, speedup: float, saved_s: float) -> Stride:
    """For a request that is about to draft; none where that does not pay, for all lately and for this one so far."""
    if speedup > _PAYS and saved_s > 0:
        return Stride([request], [replace(plan, reason=_REASON)], STEPS, _STAKE * saved_s)
    return Stride()
