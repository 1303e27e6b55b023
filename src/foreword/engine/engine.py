"""Many requests through one target: admission, steps, release."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from foreword.draft.base import DraftNeed
from foreword.engine.disk_prefixes import DiskPrefixes
from foreword.engine.kv_budget import KVBudget
from foreword.engine.kv_memory import KVMemory, Outcome
from foreword.engine.metrics import EngineMetrics
from foreword.engine.request import Request
from foreword.engine.result import FinishReason
from foreword.engine.stats import EngineStats
from foreword.engine.step import StepParts, StepRecord, speculative_step
from foreword.engine.step_clock import StepClock, StepTimes
from foreword.errors import CapacityError
from foreword.runtime.torch_threads import TorchThreads
from foreword.verify.base import Matching

logger = logging.getLogger(__name__)

StepObserver = Callable[[StepRecord, StepTimes], None]


class Engine:
    """Runs requests in one batch, each at its own pace, at most `batch_size` at a time.

    A request's tokens do not depend on who shares the batch. It belongs to one thread, which calls everything here:
    that of `EngineLoop`, or a test's own. `budget` bounds the memory of keys and values: requests wait where it is
    short, and where running ones outgrow it, the one admitted last is preempted and read again later. `disk` keeps
    prefixes beyond the process.

    `observers` are told of every step that has been, and how long it took. `now_s` is the source of time.

    An error in one request ends that request, an error in a pass all requests in it: `Request.error`.
    """

    def __init__(
        self,
        parts: StepParts,
        batch_size: int = 8,
        budget: KVBudget | None = None,
        now_s: Callable[[], float] = time.perf_counter,
        disk: DiskPrefixes | None = None,
    ) -> None:
        self.stats, self.metrics = EngineStats(), EngineMetrics()
        self.clock = StepClock(now_s)
        self.observers: list[StepObserver] = []
        self.parts = parts
        self.batch_size = batch_size
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.memory = KVMemory(parts.target.cache, _shareable(budget or KVBudget(), parts), disk)
        parts.target.reserve = self.memory.reserve
        self._is_short = False  # a request was preempted: none is admitted before another has ended
        self._torch_threads = TorchThreads(1 if parts.target.decoder.has_own_threads else None)

    def add(self, request: Request) -> None:
        """Queue a request."""
        if request.is_finished:  # no token was asked for
            self.metrics.ended(request, has_started=False)
        else:
            self.waiting.append(request)

    def step(self) -> StepRecord | None:
        """Admit what fits and run one pass; None when there is nothing to do.

        Raises what ends a whole pass or keeps a request from starting; those that it ends keep it as their `error`.
        """
        with self._torch_threads:
            self._admit()
            if not self.running:
                return None
            try:
                batch, record = self._run_pass()
                times = self.clock.times()
                self.stats.add(times)
                self.parts.controller.observe(batch, record, times)
                self.clock.stamp("learn")
                self.metrics.stepped(batch, record)
                for observer in self.observers:
                    observer(record, times)
            except BaseException as error:
                in_pass = [request for request in self.running if not self.memory.is_loading(request)]
                self._fail(in_pass, error)  # a failed pass leaves no half-known state behind
                raise
            for request in batch:
                if request.is_finished:
                    self._release(request)
            self.metrics.holds(self.memory)
            return record

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """End a request before its time, and free what it holds."""
        if not request.is_finished:
            request.finish_reason = reason
        if request in self.waiting:
            self.waiting.remove(request)
            self.metrics.ended(request, has_started=request.was_preempted)
        if request in self.running:
            self._release(request)
            self.metrics.holds(self.memory)

    def fail(self, error: BaseException) -> None:
        """End all requests for an error."""
        requests = [*self.waiting, *self.running]
        self.waiting.clear()
        self._fail(requests, error)
        self.metrics.holds(self.memory)

    def save(self, *, is_idle: bool) -> bool:
        """Save a little of what is kept to the disk; False where nothing was. See `DiskPrefixes.save`."""
        return self.memory.save(is_idle=is_idle)

    def close(self, *, saves: bool = True) -> None:
        """Free what is kept beside running requests; `saves`: to the disk what is not there. Drafters write what they keep."""
        self.memory.close(saves=saves)
        try:
            self.parts.drafter.close()
        except Exception:
            logger.warning("drafter %s failed to end", self.parts.drafter.name, exc_info=True)
        self.metrics.holds(self.memory)

    def _admit(self) -> None:
        """Admit requests in their order, but for those whose prefix another one is reading."""
        num_passed_over = 0
        for request in list(self.waiting):
            is_full = len(self.running) >= self.batch_size or (self._is_short and self.running)
            if is_full or num_passed_over == self.batch_size:
                return
            try:
                outcome = self.memory.begin(request)
                if outcome is Outcome.FULL:
                    return
                if outcome is Outcome.SHARES:
                    num_passed_over += 1
                    continue
                self.waiting.remove(request)
                self.running.append(request)
                if not request.was_preempted:
                    request.start_s = time.perf_counter()  # time in the queue is not prefill
                    self.metrics.started(request)
                self.parts.drafter.start(request)
            except BaseException as error:
                if request in self.waiting:
                    self.waiting.remove(request)
                self._fail([request], error)
                raise

    def _run_pass(self) -> tuple[list[Request], StepRecord]:
        """One pass; where memory is too short for it, another try with less."""
        while True:
            batch = sorted(self._ready(), key=_reads_prompt)  # those that decode first
            try:
                return batch, speculative_step(batch, self.parts, self.clock)
            except CapacityError:  # nothing has been committed
                if not self._make_way():
                    raise

    def _ready(self) -> list[Request]:
        """Requests for a pass. Of those whose rows are still on the disk, the one admitted first loads some."""
        while True:
            loading = next((request for request in self.running if self.memory.is_loading(request)), None)
            if loading is not None:
                had = loading.stats.cached_tokens
                try:
                    self.memory.load(loading)
                except Exception as error:  # of this request alone
                    self._fail([loading], error)
                self.metrics.loaded(loading, had)
            ready = [request for request in self.running if not self.memory.is_loading(request)]
            if ready or not self.running:
                return ready

    def _make_way(self) -> bool:
        """Free memory for a pass that found too little; False where nothing is left to free."""
        if len(self.running) > 1:
            self._preempt(self.running[-1])
            return True
        (request,) = self.running
        if self.memory.widen(request):
            return True
        if request.drafting.enabled:  # without drafts it takes less
            request.drafting = replace(request.drafting, enabled=False)
            return True
        return False

    def _preempt(self, request: Request) -> None:
        """Back to the head of the queue; prompt and output so far are read again when it is admitted."""
        self._is_short = True
        self.running.remove(request)
        self._forget(request)
        self.memory.preempt(request)
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self._is_short = False
        self.metrics.ended(request)
        try:
            self._forget(request)
        finally:
            self.memory.end(request, keeps=request.finish_reason != "abort")

    def _forget(self, request: Request) -> None:
        """Tell controller and drafter that it has ended, or begins anew."""
        self.parts.controller.forget(request)
        try:
            self.parts.drafter.stop(request)
        except Exception:  # a drafter cannot spoil an answer that is there
            logger.warning(
                "drafter %s failed to end request %d", self.parts.drafter.name, request.request_id, exc_info=True
            )

    def _fail(self, requests: list[Request], error: BaseException) -> None:
        for request in requests:
            request.fail(error)
            if request in self.running:
                self._release(request)
            else:
                self.metrics.ended(request, has_started=request.was_preempted)


def _reads_prompt(request: Request) -> bool:
    return request.is_prefilling


def _shareable(budget: KVBudget, parts: StepParts) -> KVBudget:
    """The budget, without finished regions where a prompt that is not read whole would matter.

    A drafter that learns from hidden states has to see every position, unless it can do without some. Where drafts decide
    which tokens come, what its drafter has seen must not depend on who asked before.
    """
    need = parts.drafter.need
    learns_from_all = (bool(need.taps) or need.hidden) and not need.can_miss
    drafts_matter = need != DraftNeed() and not isinstance(parts.verifier, Matching)
    return replace(budget, max_finished=0) if learns_from_all or drafts_matter else budget
