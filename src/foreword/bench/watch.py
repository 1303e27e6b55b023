"""Where the time of a run goes, step by step: a controller that watches another one.

Steps in which a prompt is read are prefill; the others are decoding, and only they are timed as such. The time of a step
counts from the end of the one before, so that everything between two passes is in it: the controller's own work, the
text, admission.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foreword.draft.base import Plan
from foreword.engine.llm import LLM
from foreword.engine.request import Request
from foreword.engine.step import Controller, StepRecord, StepTimes
from foreword.tree.draft_tree import DraftTree


@dataclass
class DecodeTimes:
    """Sums over the passes of a run."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0  # of decode_s: in the drafter
    target_s: float = 0.0  # of decode_s: in the target's passes
    decode_tokens: int = 0  # emitted by decoding passes
    num_passes: int = 0  # decoding ones
    num_nodes: int = 0  # in those


class Watch:
    """Stands before a controller and keeps the books."""

    def __init__(self, inner: Controller) -> None:
        self.inner = inner
        self.times = DecodeTimes()
        self._last_s = time.perf_counter()

    def restart(self) -> None:
        """A run begins."""
        self.times = DecodeTimes()
        self._last_s = time.perf_counter()

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """As the other."""
        return self.inner.plan(requests)

    def fit(
        self, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
    ) -> tuple[Sequence[Plan], Sequence[DraftTree]]:
        """As the other."""
        return self.inner.fit(requests, plans, trees)

    def observe(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        """Count a step, after the other has learnt from it."""
        self.inner.observe(requests, record, times)
        now_s, sums = time.perf_counter(), self.times
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        if record.was_prefilling:
            sums.prefill_s += elapsed_s
            return
        sums.decode_s += elapsed_s
        sums.draft_s += times.draft_s
        sums.target_s += times.target_s
        sums.decode_tokens += sum(record.num_emitted)
        sums.num_passes += 1
        sums.num_nodes += record.num_nodes

    def forget(self, request: Request) -> None:
        """As the other."""
        self.inner.forget(request)


def watch(llm: LLM) -> Watch:
    """Put a watch into an engine."""
    watched = Watch(llm.engine.parts.controller)
    llm.engine.parts = replace(llm.engine.parts, controller=watched)
    return watched
