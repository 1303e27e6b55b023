"""What speculation has saved a request so far, and whether it may go on.

    saved = emitted tokens * time of a plain step - time taken

In a batch all wait for the longest part of a pass, so what drafted nodes add to it is charged to the requests that drafted,
for all who waited.

A request may owe 1 % of the time it has taken and of the next steps that are to be expected; what it may still lose is its credit.
No draft adds more than that to a pass, and without credit it decodes plainly, without probes, until there is some again. While all
requests together owe more than 1 %, a request may owe no more than half a percent of its own: an unlucky one should not end drafting for those
after it. So whatever the drafter or the text, neither one long request nor many short ones end more than 2 % behind plain decoding.

What was saved lately, up to the time of 32 plain steps, is there to be tried with: out of it a request may owe 2 % of its time more, of
that to come as well, since a beginning costs most. All that hopeless texts can lose beyond the bound after a lucky one are those 32
steps, which the lucky one has brought.
"""

from dataclasses import dataclass

ALLOWED = 0.01  # of the time taken, so that a plain step earns that much of its own
_ALWAYS = 0.005  # also while others have lost what all may
_BACKED = 0.02  # more, where it was saved before
_SPARE_STEPS = 32
_GRACE_S = 0.002  # a single slow pass at the beginning says nothing yet


@dataclass
class Ledger:
    """Of one request, or of all together; seconds."""

    saved_s: float = 0.0
    taken_s: float = 0.0
    spare_s: float = 0.0  # of what was saved, what the next requests may try with

    def add(self, num_emitted: int, plain_s: float, taken_s: float) -> None:
        """A step emitted so many tokens in so long, where a plain one takes `plain_s`."""
        gain_s = num_emitted * plain_s - taken_s
        self.saved_s += gain_s
        self.taken_s += taken_s
        self.spare_s = min(max(self.spare_s + gain_s, 0.0), _SPARE_STEPS * plain_s)

    def credit_s(self, to_come_s: float = 0.0, spare_s: float = 0.0) -> float:
        """What may still be lost, where so much time is still to come and others have so much to spare; below 0: overdrawn."""
        time_s = self.taken_s + to_come_s
        return self.saved_s + ALLOWED * time_s + min(_BACKED * time_s, spare_s) + _GRACE_S

    def own_credit_s(self, to_come_s: float) -> float:
        """What may still be lost while all together have lost too much."""
        return self.saved_s + _ALWAYS * (self.taken_s + to_come_s)


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
