"""Many requests through one target: admission, steps, release."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from foreword.engine.idle import IdleRegions
from foreword.engine.request import Request
from foreword.engine.stats import EngineStats
from foreword.engine.step import StepParts, StepRecord, speculative_step
from foreword.errors import CapacityError

_FIRST_ROWS = 512  # rows of a new cache region beyond the prompt; it grows when needed


class Engine:
    """Runs requests side by side, each at its own pace, at most `batch_size` at a time.

    A request's tokens do not depend on who shares the batch. Safe to call from several threads: each may step, and
    finds its own requests advanced. The cache regions of the last `num_idle` finished requests wait for the
    conversation to go on.
    """

    def __init__(self, parts: StepParts, batch_size: int = 8, num_idle: int = 0) -> None:
        self.stats = EngineStats()
        self.parts = _timed(parts, self.stats)
        self.batch_size = batch_size
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        # A drafter that learns from hidden states has to see every position read.
        learns_from_all = bool(parts.drafter.need.taps) or parts.drafter.need.hidden
        self.idle = IdleRegions(parts.target.cache, 0 if learns_from_all else num_idle)
        self.lock = threading.RLock()  # held while requests change

    def add(self, request: Request) -> None:
        """Queue a request."""
        with self.lock:
            if not request.is_finished:
                self.waiting.append(request)

    def step(self) -> StepRecord | None:
        """Admit what fits and run one pass; None when there is nothing to do."""
        with self.lock:
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
        with self.lock:
            if request in self.waiting:
                self.waiting.remove(request)
            if not request.is_finished:
                request.finish_reason = "abort"
            if request in self.running:
                self._release(request)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.batch_size:
            request = self.waiting.popleft()
            request.start_s = time.perf_counter()  # time in the queue is not prefill
            self._give_region(request)
            self.parts.drafter.start(request)
            self.running.append(request)

    def _give_region(self, request: Request) -> None:
        """The region of the conversation that the request continues, or a new one."""
        found = self.idle.take(request.token_ids) if request.params.prompt_logprobs is None else None
        if found is not None:
            request.slot, request.kv_len = found
            request.stats.cached_tokens = request.kv_len
            return
        rows = min(request.max_len, request.prompt_len + _FIRST_ROWS)
        try:
            request.slot = self.parts.target.cache.open(rows)
        except CapacityError:
            self.idle.clear()
            request.slot = self.parts.target.cache.open(rows)

    def _select(self) -> list[Request]:
        """All decoding requests, and the first that is still reading its prompt."""
        prefilling = [r for r in self.running if r.is_prefilling]
        return [r for r in self.running if not r.is_prefilling] + prefilling[:1]

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self.parts.drafter.stop(request)
        if request.finish_reason == "abort" or not self.idle.keep(request):
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
