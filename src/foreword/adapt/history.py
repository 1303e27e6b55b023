"""The simple adaptive policy, as a baseline: longer drafts after good steps, shorter after bad ones.

Of each request's last 20 steps with drafts: above 0.8 of the drafted depth accepted, one node more; below 0.4, one less.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from foreword.draft.base import Plan
from foreword.engine.fixed_policy import FixedController
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes
from foreword.target.target import Target

_STEPS, _HIGH, _LOW = 20, 0.8, 0.4


class HistoryController(FixedController):
    """At most `num_nodes` nodes per step or as many as a request asks for, beginning there; at least `least`."""

    def __init__(self, num_nodes: int, drafter: str, least: int = 1) -> None:
        super().__init__(num_nodes, drafter)
        self.least = least
        self._sizes: dict[int, int] = {}
        self._rates: dict[int, deque[float]] = {}

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """The size that each request's history has led to."""
        plans = super().plan(requests)
        for i, (request, plan) in enumerate(zip(requests, plans, strict=True)):
            if plan.num_nodes > 0:
                size = min(self._sizes.get(request.request_id, plan.num_nodes), plan.num_nodes)
                depth = min(size, plan.depth)
                plans[i] = replace(
                    plan, num_nodes=size, depth=depth, reason=f"{size} nodes, by the last {_STEPS} steps"
                )
        return plans

    def observe(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        """Count what was accepted, and adjust."""
        for request, plan, tree, verdict in zip(requests, record.plans, record.trees, record.verdicts, strict=True):
            if tree.num_drafted:
                key = request.request_id
                depth = max(tree.depths) - tree.num_known + 1
                rates = self._rates.setdefault(key, deque(maxlen=_STEPS))
                rates.append(verdict.num_accepted / depth)
                rate = sum(rates) / len(rates)
                self._sizes[key] = max(plan.num_nodes + (rate > _HIGH) - (rate < _LOW), self.least)

    def forget(self, request: Request) -> None:
        """It has ended."""
        self._sizes.pop(request.request_id, None)
        self._rates.pop(request.request_id, None)


def make(target: Target, num_nodes: int, drafter: str) -> HistoryController:
    """For the table of policies."""
    return HistoryController(num_nodes, drafter)
