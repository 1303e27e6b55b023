"""What a step costs: the target's pass by its nodes and its context, the drafter's proposals, and the rest of the host's work.

    T(pass) = base(nodes of all requests) + sum over requests of slope(its nodes) * its committed tokens

`base` and `slope` are straight lines between the measured widths (`timing.py`), and go on as the last one beyond them. What
passes take later corrects the figures: a common factor that follows the machine (other jobs, heat), and slowly each width's own.
"""

import bisect
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_FOLLOW, _CORRECT = 0.08, 0.03  # how fast the common factor and each width's own move: a dozen passes, some thirty
_TABLE_LEN = 129  # widths looked up, since a choice asks for every one of its nodes; wider passes are computed
_TABULATE_EVERY = 32  # passes
_SMOOTH = 0.1  # of smoothed figures, what a step counts
_CHEAP = 0.08  # of a plain step: a drafter that takes less is called wherever its nodes may gain time
_UNKNOWN = 0.005  # of a plain pass a token: what reading a text is thought to take a drafter before it is known
_PASSES = 5  # with drafted nodes: enough for a median that one stall does not move
_TRUSTED = 8  # proposals that took next to nothing before that is taken for the rule


@dataclass
class PassCosts:
    """Seconds of a target pass. `base` and `slope` belong to `widths`, which rise."""

    widths: list[int]
    base: list[float]
    slope: list[float]  # seconds that a committed token adds
    common: float = 1.0  # factor on all widths: the machine now, over the machine when it was measured
    own: list[float] = field(default_factory=list)  # each width's factor: what was measured wrongly

    def __post_init__(self) -> None:
        self.own = self.own or [1.0] * len(self.widths)
        self._num_passes = 0
        self._slopes = self._table(self.slope)
        self._tabulate()

    def seconds(self, num_nodes: Sequence[int], contexts: Sequence[int]) -> float:
        """One pass over so many nodes of each request, after so many committed tokens of each."""
        attention = sum(
            (self._slopes[nodes] if nodes < _TABLE_LEN else self._line(self.slope, nodes)) * length
            for nodes, length in zip(num_nodes, contexts, strict=True)
        )
        total = sum(num_nodes)
        base = self._bases[total] if total < _TABLE_LEN else self._line(self._corrected, total)
        return self.common * (base + attention)

    def added(self, num_nodes: int, num_more: int, context: int) -> float:
        """What some more nodes add to a pass over so many nodes of one request."""
        return self.seconds([num_nodes + num_more], [context]) - self.seconds([num_nodes], [context])

    def refine(self, num_nodes: Sequence[int], contexts: Sequence[int], seconds: float, num_passes: int = 1) -> None:
        """A pass took so long, or several did in the mean."""
        ratio = min(max(seconds / self.seconds(num_nodes, contexts), 0.5), 2.0)  # more is a stall, not a cost
        self.common *= ratio ** (1 - (1 - _FOLLOW) ** num_passes)
        nearest = min(range(len(self.widths)), key=lambda i: abs(self.widths[i] - sum(num_nodes)))
        self.own[nearest] *= ratio ** (1 - (1 - _CORRECT) ** num_passes)
        self._num_passes += num_passes
        if self._num_passes % _TABULATE_EVERY < num_passes:
            self._tabulate()

    def _tabulate(self) -> None:
        self._corrected = [base * own for base, own in zip(self.base, self.own, strict=True)]
        self._bases = self._table(self._corrected)

    def _table(self, values: Sequence[float]) -> list[float]:
        return [self._line(values, n) for n in range(_TABLE_LEN)]

    def _line(self, values: Sequence[float], n: int) -> float:
        """Between the nearest widths; beyond the last as between the last two."""
        if len(values) == 1:
            return values[0]
        right = min(max(bisect.bisect_left(self.widths, n), 1), len(values) - 1)
        x0, x1 = self.widths[right - 1], self.widths[right]
        return values[right - 1] + (values[right] - values[right - 1]) * (n - x0) / (x1 - x0)


class StepCosts:
    """What steps take beside the target's passes, learnt as they run.

    Args:
        passes: what the target's passes cost.
    """

    def __init__(self, passes: PassCosts) -> None:
        self.passes = passes
        self.host_s = 0.0  # of a plain step, beside drafter and target; smoothed
        self._drafted_host_s = 0.0  # of one with drafts
        self.proposal_s = 0.0  # of asking drafters that run a model, smoothed
        self._first_s = 0.0  # of a request's first such proposal, per token that is read for it
        self._num_cheap = 0  # proposals of all drafters that took next to no time
        # Of the last passes with drafted nodes: what they took over what they should have.
        self._ratios: deque[float] = deque(maxlen=_PASSES)

    def first_proposal_s(self, num_tokens: int, plain_pass_s: float) -> float:
        """A request's first proposal of a drafter that reads so many tokens of its text for that."""
        if not self._first_s and self._num_cheap >= _TRUSTED:
            return self.proposal_s
        return (self._first_s or _UNKNOWN * plain_pass_s) * num_tokens

    def learn_plain(self, num_nodes: Sequence[int], contexts: Sequence[int], target_s: float, host_s: float) -> None:
        """A step without drafted nodes."""
        self.host_s = _smoothed(self.host_s, host_s)
        self.passes.refine(num_nodes, contexts, target_s)

    def learn_drafted(self, num_nodes: Sequence[int], contexts: Sequence[int], target_s: float, host_s: float) -> None:
        """A step with drafted nodes."""
        self._drafted_host_s = _smoothed(self._drafted_host_s, host_s)
        self.passes.refine(num_nodes, contexts, target_s)
        self._ratios.append(target_s / self.passes.seconds(num_nodes, contexts))

    def added_s(self, num_nodes: Sequence[int], num_known: Sequence[int], contexts: Sequence[int]) -> float:
        """What its drafted nodes have added to the step that was learnt last.

        Its pass counts as the median of the last ones did, in times of what they should take: a stall of the machine is nobody's loss.
        """
        pass_s = self.passes.seconds(num_nodes, contexts) * statistics.median(self._ratios)
        return pass_s - self.passes.seconds(num_known, contexts) + max(self._drafted_host_s - self.host_s, 0.0)

    def learn_proposal(self, draft_s: float, num_first_tokens: int, ran_model: bool, asked_all: bool) -> None:
        """Drafters were asked and took so long.

        Args:
            draft_s: seconds.
            num_first_tokens: of the texts that a drafter which runs a model has read for first proposals; 0 for none.
            ran_model: whether it took a model's time.
            asked_all: whether all drafters were asked, those that run a model among them.
        """
        self._num_cheap += asked_all and not ran_model
        if num_first_tokens:
            self._first_s = draft_s / num_first_tokens
        elif ran_model:
            self.proposal_s += _SMOOTH * (draft_s - self.proposal_s)

    def ran_model(self, draft_s: float, plain_s: float) -> bool:
        """Whether drafters took so long, in a step that would take so long without them."""
        return draft_s > _CHEAP * plain_s


def _smoothed(value: float, new: float) -> float:
    """A stall counts as twice the usual."""
    return value + _SMOOTH * (min(new, 2 * value) - value) if value else new
