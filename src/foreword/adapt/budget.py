"""The slowdown budget: what speculation may lose, for each request and over all, and when to retry what was switched off.

    saved = emitted tokens * time of a plain step - time taken

In a batch all wait for the longest part of a pass, so what drafted nodes add to it is charged to the requests that drafted, for
all who waited. A request's budget is 1 % of the time that it has taken and of the next steps, plus what it has saved. No draft
adds more than that to a pass, and without a budget a request decodes plainly, without retries, until there is one again. While
all requests together have lost more than 1 %, each has half a percent of its own time: one whose drafts were wrong should not
end drafting for those after it. So whatever the drafter or the text, neither one long request nor many short ones end more than 2 % behind plain
decoding.

What was saved lately, up to the time of 32 plain steps, is a reserve to explore with: out of it a request may lose 2 % of its
time more. So texts that gain nothing can together lose those 32 steps beyond the bound, which an earlier one has saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.adapt.acceptance import RequestAcceptance

SHARE = 0.01  # of the time taken, so that a plain step earns that much of its own
_OWN_SHARE = 0.005  # while all together have lost too much; both with the reserve's share below make the promised 2 %
_RESERVE_SHARE = 0.02  # 0.5 left `auto` at 1.22 times plain decoding, 2 at 1.32, 4 at 1.33 (30 prompts)
_RESERVE_STEPS = 32
HORIZON = 64  # plain steps to come that a request may borrow against: a short answer's
GRACE = (
    0.4  # of a plain step, always: without it a first wrong tree ends drafting for short answers (1.35 against 1.39)
)
_FIRST_RETRY, _LAST_RETRY = (
    12,
    384,
)  # steps; a probe of 3 nodes costs a quarter of a step, so one in 12 costs 2 % at worst
_TRIAL_PROPOSALS = 16  # to a drafter that runs a model before its time can count as lost
_SMOOTH = 0.1  # of smoothed figures, what a step counts
_USELESS, _MOST_SKIPPED = 8, 4  # proposals in a row not worth reading that skip one step more; steps skipped at most


@dataclass
class SlowdownBudget:
    """Of one request, or of all together; seconds."""

    saved_s: float = 0.0
    taken_s: float = 0.0
    reserve_s: float = 0.0  # of what was saved, what the next requests may explore with

    def add(self, num_emitted: int, plain_s: float, taken_s: float) -> None:
        """A step emitted so many tokens in so long, where a plain one takes `plain_s`."""
        gain_s = num_emitted * plain_s - taken_s
        self.saved_s += gain_s
        self.taken_s += taken_s
        self.reserve_s = min(max(self.reserve_s + gain_s, 0.0), _RESERVE_STEPS * plain_s)

    def left_s(self, to_come_s: float = 0.0, reserve_s: float = 0.0) -> float:
        """What may still be lost, where so much time is still to come and so much is in reserve; below 0: overdrawn."""
        time_s = self.taken_s + to_come_s
        return self.saved_s + SHARE * time_s + min(_RESERVE_SHARE * time_s, reserve_s)

    def own_left_s(self, to_come_s: float) -> float:
        """What may still be lost while all requests together have lost too much."""
        return self.saved_s + _OWN_SHARE * (self.taken_s + to_come_s)


def charges(num_drafted: Sequence[int], plain_s: float, taken_s: float) -> list[float]:
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


@dataclass
class RetryInterval:
    """When to retry what was slower: twice as many steps later after each retry that was slower."""

    num_steps: int = _FIRST_RETRY
    num_skipped: int = 0  # steps since the last try

    @property
    def num_left(self) -> int:
        """Steps until the next try."""
        return max(self.num_steps - self.num_skipped, 0)

    @property
    def is_due(self) -> bool:
        """Whether it is time."""
        return self.num_left == 0

    def tried(self, paid: bool, was_retry: bool) -> None:
        """A try is over."""
        self.num_skipped = 0
        if paid:
            self.num_steps = _FIRST_RETRY
        elif was_retry:
            self.num_steps = min(2 * self.num_steps, _LAST_RETRY)


@dataclass
class DrafterPayoff:
    """Whether the time of a drafter that runs a model comes back, for one request."""

    num_proposals: int = 0
    gain_s: float = 0.0  # smoothed: seconds that a step with it saves
    retry: RetryInterval = field(default_factory=RetryInterval)
    has_begun: bool = False  # the first proposal, for which it reads the text, says nothing of the next ones

    @property
    def pays(self) -> bool:
        """As far as is known."""
        return self.num_proposals < _TRIAL_PROPOSALS or self.gain_s > 0

    def asked(self, saved_s: float) -> None:
        """A step that took its time is over."""
        if not self.has_begun:
            self.has_begun, self.retry.num_skipped = True, 0
            return
        was_retry = not self.pays
        self.num_proposals += 1
        self.gain_s += _SMOOTH * (saved_s - self.gain_s) if self.num_proposals > 1 else saved_s
        if was_retry and saved_s > 0:
            self.gain_s = max(self.gain_s, saved_s)
        self.retry.tried(saved_s > 0, was_retry)


@dataclass
class RequestState:
    """What is known of one request."""

    budget: SlowdownBudget = field(default_factory=SlowdownBudget)
    acceptance: RequestAcceptance = field(default_factory=RequestAcceptance)
    payoff: DrafterPayoff = field(default_factory=DrafterPayoff)
    retry: RetryInterval = field(
        default_factory=RetryInterval
    )  # of verifying drafted nodes where none gains more than it costs
    num_useless: int = 0  # proposals in a row of which nothing was worth reading
    num_to_skip: int = 0  # steps before the drafter is asked again for that
    was_off: bool = False  # the last step asked nobody, so a drafter that reads the target's states has not seen it

    def count(self, num_drafted: int, was_asked: bool, ran_model: bool, saved_s: float, could_guess: bool) -> None:
        """A step is over.

        Args:
            num_drafted: nodes that were read.
            was_asked: whether a drafter was asked.
            ran_model: whether that took a model's time.
            saved_s: seconds that the step has saved.
            could_guess: False where the drafter had not seen the pass before: nothing from it then says nothing.
        """
        if ran_model:
            self.payoff.asked(saved_s)
        else:
            self.payoff.retry.num_skipped += 1
        self.was_off = not was_asked
        if was_asked and (could_guess or num_drafted):
            self.num_useless = 0 if num_drafted else self.num_useless + 1
            self.num_to_skip = min(self.num_useless // _USELESS, _MOST_SKIPPED)
        elif self.num_to_skip:
            self.num_to_skip -= 1
        if num_drafted:
            self.retry.tried(saved_s > 0, self.retry.is_due)
        else:
            self.retry.num_skipped += 1
