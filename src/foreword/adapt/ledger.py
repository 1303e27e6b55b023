"""What speculation has saved a request so far, and whether it may go on.

    saved = emitted tokens * time of a plain step - time taken

In a batch all wait for the longest part of a pass, so what drafted nodes add to it is charged to the requests that drafted,
for all who waited.

A request may owe 1 % of the time it has taken and of the next steps that are to be expected; while those before it have saved
time, 2 % more, out of that: one text's luck pays for trying on the next. What it may still lose is its credit. No draft adds more
than that to a pass, and without credit it decodes plainly, without probes, until there is some again. Of what was saved, only so much is
remembered as 32 plain steps take, and while all requests together owe more than 1 %, only those draft that are ahead
themselves. So whatever the drafter or the text, neither one long request nor many short ones can end more than 2 % behind plain decoding,
and after a lucky text hopeless ones lose 32 steps besides, all together.
"""

from dataclasses import dataclass

_ALLOWED = 0.01
_BACKED = 0.02  # more, where others have saved it
_REMEMBERED_STEPS = 32  # plain steps: the most that all together count as saved
MOST_SHARE = _ALLOWED + _BACKED  # of the time taken: what a request may lose at all
_GRACE_S = 0.002  # a single slow pass at the beginning says nothing yet


@dataclass
class Ledger:
    """Of one request, or of all together; seconds."""

    saved_s: float = 0.0
    taken_s: float = 0.0
    is_common: bool = False  # of all requests: forgets what is more than the next ones may need

    def add(self, num_emitted: int, plain_s: float, taken_s: float) -> None:
        """A step emitted so many tokens in so long, where a plain one takes `plain_s`."""
        self.saved_s += num_emitted * plain_s - taken_s
        if self.is_common:
            self.saved_s = min(self.saved_s, _REMEMBERED_STEPS * plain_s)
        self.taken_s += taken_s

    def credit_s(self, to_come_s: float = 0.0, backing_s: float = 0.0) -> float:
        """What may still be lost, where so much time is still to come and others have saved so much; below 0: overdrawn."""
        time_s = self.taken_s + to_come_s
        return self.saved_s + _ALLOWED * time_s + min(_BACKED * time_s, max(backing_s, 0.0)) + _GRACE_S


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
