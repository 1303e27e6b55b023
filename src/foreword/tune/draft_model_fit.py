"""A target and a draft model: do they fit, and what does the arithmetic of speculation say before and after measuring?

alpha   share of drafted tokens that are accepted, of those whose turn came        measured, on chains
c       a pass of the draft model over one of the target                           measured
S(k)    (1 - alpha^(k + 1)) / (1 - alpha) / (T(k + 1) / T(1) + k c)                predicted [leviathan23]
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from foreword.adapt.estimate import MOST_DRAFTED, best_k, speed_up
from foreword.adapt.timing import costs_of
from foreword.checkpoint.pairing import Pairing
from foreword.engine.stats import RequestStats
from foreword.runtime.timed_passes import time_passes
from foreword.target.load_model import LoadedModel, load_draft_model
from foreword.target.target import Target

_CONTEXT = 64
_ROUNDS = (5, 15)
_BUDGET_S = 1.0


@dataclass(frozen=True)
class PairFacts:
    """What is known of a pair."""

    draft: str
    pairing: Pairing
    size_ratio: float  # parameters, target over draft
    c: float
    verify_costs: tuple[float, ...]  # T(k + 1) / T(1) by k
    alpha: float | None = None  # None until measured
    k: int | None = None  # what was drafted when alpha was measured

    def predicted(self, k: int) -> float | None:
        """Times plain decoding at k tokens per step."""
        return None if self.alpha is None else speed_up(self.alpha, self.c, k, self.verify_costs[k])

    @property
    def best(self) -> tuple[int, float] | None:
        """The best k and its predicted speed-up; k = 0 where plain decoding is fastest."""
        return None if self.alpha is None else best_k(self.alpha, self.c, self.verify_costs)

    def with_alpha(self, stats: Iterable[RequestStats], k: int) -> "PairFacts":
        """With the acceptance that these answers had."""
        return replace(self, alpha=acceptance(stats), k=k)


def look_at_pair(model: LoadedModel, draft: str) -> PairFacts:
    """Load the draft model beside the target, compare vocabularies and sizes, time both."""
    target = Target(model.decoder, model)
    loaded, pairing = load_draft_model(draft, target)
    context = min(_CONTEXT, loaded.decoder.spec.context_len // 2, model.decoder.spec.context_len // 2)
    draft_s = time_passes(loaded.decoder, (1,), [context], _ROUNDS, budget_s=_BUDGET_S)[1, context]
    plain_s = time_passes(model.decoder, (1,), [context], _ROUNDS, budget_s=_BUDGET_S)[1, context]
    costs = costs_of(target)
    one = costs.seconds([1], [context])
    verify = tuple(max(costs.seconds([k + 1], [context]) / one, 1.0) for k in range(MOST_DRAFTED + 1))
    ratio = model.checkpoint.spec.num_parameters / max(1, loaded.checkpoint.spec.num_parameters)
    return PairFacts(loaded.checkpoint.source, pairing, ratio, draft_s / plain_s, verify)


def acceptance(stats: Iterable[RequestStats]) -> float | None:
    """Of drafted tokens in chains whose turn came, the share that was accepted; None where none was drafted.

    The token at depth d has its turn where the one before it was accepted; of the first that holds always.
    """
    accepted = judged = 0
    for request in stats:
        before: Sequence[int] = [*request.drafted_at_depth[:1], *request.accepted_at_depth]
        judged += sum(min(b, d) for b, d in zip(before, request.drafted_at_depth, strict=False))
        accepted += sum(request.accepted_at_depth)
    return accepted / judged if judged else None
