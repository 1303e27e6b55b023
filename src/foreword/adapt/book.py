"""What the controller knows of one request: what drafting has saved it, how far its guesses can be trusted, when to ask again."""

from dataclasses import dataclass, field

from foreword.adapt.acceptance import Trust
from foreword.adapt.ledger import Ledger

_FIRST_GAP, _LAST_GAP = 12, 384  # plain steps before what is off is tried again
_TRIAL_STEPS = 16  # drafts before asking can count as not paying
_VAIN = (8, 16, 32, 32)  # vain questions in a row: from each of these on, one step more goes without
SMOOTH = 0.1  # of smoothed figures, what a step counts


@dataclass
class Book:
    """What is known of one request."""

    ledger: Ledger = field(default_factory=Ledger)
    trust: Trust = field(default_factory=Trust)
    gap: int = _FIRST_GAP
    num_plain: int = 0  # steps in a row without drafted nodes
    num_asked: int = 0
    num_vain: int = 0  # steps in a row that asked, and nothing of what came was worth reading
    wait: int = 0  # steps before asking again for that
    gain_s: float = 0.0  # smoothed: seconds that a step with the drafter saves

    @property
    def is_due(self) -> bool:
        """Whether it is time to try again."""
        return self.num_plain >= self.gap

    @property
    def asking_pays(self) -> bool:
        """Whether the drafter's time has come back."""
        return self.num_asked < _TRIAL_STEPS or self.gain_s > 0

    def count_step(self, num_drafted: int, was_asked: bool, saved_s: float) -> None:
        """A step is over."""
        if was_asked:
            self.num_vain = 0 if num_drafted else self.num_vain + 1
            self.wait = sum(self.num_vain >= limit for limit in _VAIN)
            self.num_asked += 1
            self.gain_s += SMOOTH * (saved_s - self.gain_s) if self.num_asked > 1 else saved_s
        if num_drafted == 0:
            self.num_plain += 1
            return
        was_probe, self.num_plain = self.num_plain >= self.gap, 0
        if saved_s > 0:
            self.gap = _FIRST_GAP
            self.gain_s = max(self.gain_s, saved_s) if was_probe else self.gain_s
        elif was_probe:
            self.gap = min(2 * self.gap, _LAST_GAP)
