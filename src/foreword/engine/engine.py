"""Many requests through one target: admission, steps, release."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from foreword.engine.request import Request
from foreword.engine.stats import EngineStats
from foreword.engine.step import StepParts, StepRecord, speculative_step

_FIRST_ROWS = 512  # rows of a new cache region beyond the prompt; it grows when needed


class Engine:
    """Runs requests side by side, each at its own pace, at most `batch_size` at a time.

    A request's tokens do not depend on who shares the batch. Safe to call from several threads: each may step, and finds
    its own requests advanced.
    """

    def __init__(self, parts: StepParts, batch_size: int = 8) -> None:
        self.stats = EngineStats()
        self.parts = _timed(parts, self.stats)
        self.batch_size = batch_size
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._lock = threading.RLock()

    def add(self, request: Request) -> None:
        """Queue a request."""
        with self._lock:
            if not request.is_finished:
                self.waiting.append(request)

    def step(self) -> StepRecord | None:
        """Admit what fits and run one pass; None when there is nothing to do."""
        with self._lock:
            self._admit()
            batch = self._select()
            if not batch:
                return None
            start_s = time.perf_counter()
            try:
                record = speculative_step(batch, self.parts)
            except BaseException:
                self._abort_all(batch)  # a failed pass leaves no half-known state behind
                raise
            self.stats.num_steps += 1
            self.stats.total_s += time.perf_counter() - start_s
            for request in batch:
                if request.is_finished:
                    self._release(request)
            return record

    def abort(self, request: Request) -> None:
        """End a request whose reader went away and free what it holds."""
        with self._lock:
            if request in self.waiting:
                self.waiting.remove(request)
            if not request.is_finished:
                request.finish_reason = "abort"
            if request in self.running:
                self._release(request)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.batch_size:
            request = self.waiting.popleft()
            rows = min(request.max_len, request.prompt_len + _FIRST_ROWS)
            request.slot = self.parts.target.cache.open(rows)
            self.parts.drafter.start(request)
            self.running.append(request)

    def _select(self) -> list[Request]:
        """All decoding requests, and the first that is still reading its prompt."""
        prefilling = [r for r in self.running if r.is_prefilling]
        return [r for r in self.running if not r.is_prefilling] + prefilling[:1]

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self.parts.drafter.stop(request)
        self.parts.target.cache.close(request.slot)
        request.slot = -1

    def _abort_all(self, batch: list[Request]) -> None:
        for request in batch:
            request.finish_reason = request.finish_reason or "abort"
            if request in self.running:
                self._release(request)


def _timed(parts: StepParts, stats: EngineStats) -> StepParts:
    """The same parts, with the time spent in the drafter and the target counted."""
    return replace(
        parts,
        drafter=_Stopwatch(parts.drafter, ("propose", "observe"), stats, "draft_s"),
        target=_Stopwatch(parts.target, ("forward", "commit"), stats, "target_s"),
    )


class _Stopwatch:
    """Stands in for an object and adds the time of some of its calls to a field."""

    def __init__(self, inner: Any, methods: tuple[str, ...], stats: EngineStats, total: str) -> None:
        self._inner = inner
        for name in methods:
            setattr(self, name, _count_time(getattr(inner, name), stats, total))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _count_time(call: Callable[..., Any], stats: EngineStats, total: str) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return call(*args)
        finally:
            setattr(stats, total, getattr(stats, total) + time.perf_counter() - start_s)

    return counted
