"""What the controller knows of one request: what drafting has saved it, how far its guesses can be trusted, when to ask again."""

from dataclasses import dataclass, field

from foreword.adapt.acceptance import Trust
from foreword.adapt.ledger import Ledger

_FIRST_GAP, _LAST_GAP = 12, 384  # plain steps before what is off is tried again
_TRIAL_STEPS = 16  # drafts before asking can count as not paying
_VAIN = (8, 16, 32, 32)  # vain questions in a row: from each of these on, one step more goes without
SMOOTH = 0.1  # of smoothed figures, what a step counts


@dataclass
class Asking:
    """Whether the time of a drafter that runs a model has come back."""

    num_steps: int = 0
    gain_s: float = 0.0  # smoothed: seconds that a step with it saves
    gap: int = _FIRST_GAP
    num_without: int = 0  # steps since it was asked last
    has_begun: bool = False  # the first question, for which the whole text is read, says nothing of the next ones

    @property
    def pays(self) -> bool:
        """As far as is known."""
        return self.num_steps < _TRIAL_STEPS or self.gain_s > 0

    @property
    def is_due(self) -> bool:
        """Whether it is time to try again."""
        return self.num_without >= self.gap

    def count(self, saved_s: float) -> None:
        """A step that took its time is over."""
        was_probe = not self.pays
        if not self.has_begun:
            self.has_begun, self.num_without = True, 0
            return
        self.num_without, self.num_steps = 0, self.num_steps + 1
        self.gain_s += SMOOTH * (saved_s - self.gain_s) if self.num_steps > 1 else saved_s
        if saved_s > 0:
            self.gap = _FIRST_GAP
            self.gain_s = max(self.gain_s, saved_s) if was_probe else self.gain_s
        elif was_probe:
            self.gap = min(2 * self.gap, _LAST_GAP)


@dataclass
class Book:
    """What is known of one request."""

    ledger: Ledger = field(default_factory=Ledger)
    trust: Trust = field(default_factory=Trust)
    asking: Asking = field(default_factory=Asking)
    gap: int = _FIRST_GAP
    num_plain: int = 0  # steps in a row without drafted nodes
    num_vain: int = 0  # steps in a row that asked, and nothing of what came was worth reading
    wait: int = 0  # steps before asking again for that
    was_off: bool = False  # the last step asked nobody, so a drafter that reads the target's states has not seen it

    @property
    def is_due(self) -> bool:
        """Whether it is time to read something again, though no node pays."""
        return self.num_plain >= self.gap

    def count_step(
        self, num_drafted: int, was_asked: bool, was_dear: bool, saved_s: float, was_blind: bool = False
    ) -> None:
        """A step is over: nodes read, whether a drafter was asked, whether that took a model's time, what was saved.

        Nothing from a blind question, to a drafter that had not seen the pass before, says nothing: it sees this one.
        """
        if was_dear:
            self.asking.count(saved_s)
        else:
            self.asking.num_without += 1
        self.was_off = not was_asked
        if was_asked and not (was_blind and num_drafted == 0):
            self.num_vain = 0 if num_drafted else self.num_vain + 1
            self.wait = sum(self.num_vain >= limit for limit in _VAIN)
        elif self.wait:
            self.wait -= 1
        if num_drafted == 0:
            self.num_plain += 1
            return
        was_probe, self.num_plain = self.num_plain >= self.gap, 0
        if saved_s > 0:
            self.gap = _FIRST_GAP
        elif was_probe:
            self.gap = min(2 * self.gap, _LAST_GAP)
