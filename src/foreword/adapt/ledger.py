"""What speculation has saved a request so far, and whether it may go on.

    saved = emitted tokens * time of a plain step - time taken

In a batch all wait for the longest part of a pass, so what drafted nodes add to it is charged to the requests that drafted,
for all who waited.

A request may owe 1 % of the time it has taken and of the next steps that are to be expected; the second part only as long
as all requests of the controller together do not owe more than 1 % themselves. Beyond that it decodes plainly, without probes, until it is
above again. So neither a long request nor many short ones can end much behind plain decoding, whatever the drafter or the text.
"""

from dataclasses import dataclass

_ALLOWED = 0.01
_GRACE_S = 0.002  # a single slow pass at the beginning says nothing yet


@dataclass
class Ledger:
    """Of one request; seconds."""

    saved_s: float = 0.0
    taken_s: float = 0.0

    def add(self, num_emitted: int, plain_s: float, taken_s: float) -> None:
        """A step emitted so many tokens in so long, where a plain one takes `plain_s`."""
        self.saved_s += num_emitted * plain_s - taken_s
        self.taken_s += taken_s

    def is_overdrawn(self, to_come_s: float = 0.0) -> bool:
        """Whether only plain steps are allowed, where so much time is still to come."""
        return self.saved_s < -_ALLOWED * (self.taken_s + to_come_s) - _GRACE_S


def charges(num_drafted: list[int], plain_s: float, taken_s: float) -> list[float]:
    """The time that each request of a step is charged: together, the number of requests times the step.

    Args:
        num_drafted: nodes that each request drafted.
        plain_s: what a plain step of the same requests takes.
        taken_s: what the step took.
    """
    total = sum(num_drafted)
    if total == 0:
        return [taken_s] * len(num_drafted)
    extra = (taken_s - plain_s) * len(num_drafted)
    return [plain_s + extra * drafted / total for drafted in num_drafted]
