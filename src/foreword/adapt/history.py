"""The simple adaptive policy, as a baseline: longer drafts after good steps, shorter after bad ones.

Of each request's last 20 steps with drafts: above 0.8 of the drafted depth accepted, one node more; below 0.4, one less.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from foreword.draft.base import Plan
from foreword.engine.controller import FixedController
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes
from foreword.target.target import Target

_STEPS, _HIGH, _LOW = 20, 0.8, 0.4


class HistoryController(FixedController):
    """Between `least` and `most` nodes a step, beginning at `num_nodes`."""

    def __init__(self, num_nodes: int, drafter: str, least: int = 1, most: int = 16) -> None:
        super().__init__(num_nodes, drafter)
        self.least, self.most = least, most
        self._sizes: dict[int, int] = {}
        self._rates: dict[int, deque[float]] = {}

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """The size that each request's history has led to."""
        plans = super().plan(requests)
        for i, (request, plan) in enumerate(zip(requests, plans, strict=True)):
            if plan.num_nodes > 0:
                size = min(self._sizes.get(request.request_id, self.num_nodes), self.most)
                depth = min(size, request.remaining - 1)
                plans[i] = replace(
                    plan, num_nodes=size, depth=depth, reason=f"{size} nodes, by the last {_STEPS} steps"
                )
        return plans

    def observe(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        """Count what was accepted, and adjust."""
        for request, tree, verdict in zip(requests, record.trees, record.verdicts, strict=True):
            key = request.request_id
            if request.is_finished:
                self._sizes.pop(key, None)
                self._rates.pop(key, None)
            elif tree.num_drafted:
                depth = max(tree.depths) - tree.num_known + 1
                rates = self._rates.setdefault(key, deque(maxlen=_STEPS))
                rates.append(verdict.num_accepted / depth)
                self._adjust(key, sum(rates) / len(rates))

    def _adjust(self, key: int, rate: float) -> None:
        size = self._sizes.get(key, self.num_nodes)
        step = (rate > _HIGH) - (rate < _LOW)
        self._sizes[key] = min(max(size + step, self.least), self.most)


def make(target: Target, num_nodes: int, drafter: str) -> HistoryController:
    """For the table of policies."""
    return HistoryController(num_nodes, drafter)
