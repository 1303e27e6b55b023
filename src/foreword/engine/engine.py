"""Many requests through one target: admission, steps, release."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from foreword.engine.idle import IdleRegions
from foreword.engine.request import Request
from foreword.engine.stats import EngineStats
from foreword.engine.step import StepParts, StepRecord, speculative_step
from foreword.engine.step_clock import StepClock, StepTimes
from foreword.errors import CapacityError
from foreword.runtime.torch_threads import TorchThreads

logger = logging.getLogger(__name__)

T = TypeVar("T")
StepObserver = Callable[[StepRecord, StepTimes], None]
_FIRST_ROWS = 512  # rows of a new cache region beyond the prompt; it grows when needed


class Engine:
    """Runs requests side by side, each at its own pace, at most `batch_size` at a time.

    A request's tokens do not depend on who shares the batch. Safe to call from several threads: each may step, and
    finds its own requests advanced. The cache regions of the last `num_idle` finished requests wait for the
    conversation to go on, unless their memory is needed.

    `observers` are told of every step that has been, and how long it took. `now_s` is the source of time.

    What goes wrong with one request ends that one, what goes wrong with a pass all that share it: `Request.error`.
    """

    def __init__(
        self,
        parts: StepParts,
        batch_size: int = 8,
        num_idle: int = 0,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.stats = EngineStats()
        self.clock = StepClock(now_s)
        self.observers: list[StepObserver] = []
        self.parts = parts
        parts.target.make_room = self._make_room
        self.batch_size = batch_size
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        # A drafter that learns from hidden states has to see every position read, unless it can do without some.
        need = parts.drafter.need
        learns_from_all = (bool(need.taps) or need.hidden) and not need.can_miss
        self.idle = IdleRegions(parts.target.cache, 0 if learns_from_all else num_idle)
        self.lock = threading.RLock()  # held while requests change
        self._torch_threads = TorchThreads(1 if parts.target.decoder.has_own_threads else None)

    def add(self, request: Request) -> None:
        """Queue a request."""
        with self.lock:
            if not request.is_finished:
                self.waiting.append(request)

    def step(self) -> StepRecord | None:
        """Admit what fits and run one pass; None when there is nothing to do.

        Raises what ends a whole pass or keeps a request from starting, whoever's it is: see `advance`.
        """
        with self.lock, self._torch_threads:
            self._admit()
            batch = self._select()
            if not batch:
                return None
            try:
                record = speculative_step(batch, self.parts, self.clock)
                times = self.clock.times()
                self.stats.add(times)
                self.parts.controller.observe(batch, record, times)
                self.clock.stamp("learn")
                for observer in self.observers:
                    observer(record, times)
            except BaseException as error:
                self._fail(batch, error)  # a failed pass leaves no half-known state behind
                raise
            for request in batch:
                if request.is_finished:
                    self._release(request)
            return record

    def advance(self, requests: Sequence[Request]) -> None:
        """As `step`, for the owner of `requests`: raises what ended one of those, not what ended others alone."""
        with self.lock:
            concerned = [*self.waiting, *self.running]
            try:
                self.step()
            except Exception as error:
                if not any(request.error is error for request in concerned):
                    raise  # or nobody would
            for request in requests:
                if request.error is not None:
                    raise request.error

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
            try:
                self._give_region(request)
                self.running.append(request)
                self.parts.drafter.start(request)
            except BaseException as error:
                self._fail([request], error)
                raise

    def _give_region(self, request: Request) -> None:
        """The region of the conversation that the request continues, or a new one."""
        found = self.idle.take(request.token_ids) if request.params.prompt_logprobs is None else None
        if found is not None:
            request.slot, request.kv_len = found
            request.stats.cached_tokens = request.kv_len
            return
        rows = min(request.max_len, request.prompt_len + _FIRST_ROWS)
        request.slot = self._with_room(self.parts.target.cache.open, rows)

    def _with_room(self, call: Callable[..., T], *args: Any) -> T:
        """The call; where memory is short, once more without the idle regions."""
        try:
            return call(*args)
        except CapacityError:
            if not self._make_room():
                raise
            return call(*args)

    def _make_room(self) -> bool:
        """Free the idle regions; False where there are none."""
        if not len(self.idle):
            return False
        self.idle.clear()
        return True

    def _select(self) -> list[Request]:
        """All decoding requests, and the first that is still reading its prompt."""
        prefilling = [r for r in self.running if r.is_prefilling]
        return [r for r in self.running if not r.is_prefilling] + prefilling[:1]

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self.parts.controller.forget(request)
        try:
            self.parts.drafter.stop(request)
        except Exception:  # a drafter cannot spoil an answer that is there
            logger.warning(
                "drafter %s failed to end request %d", self.parts.drafter.name, request.request_id, exc_info=True
            )
        finally:
            if request.finish_reason == "abort" or not self.idle.keep(request):
                self.parts.target.cache.close(request.slot)
            request.slot = -1

    def _fail(self, requests: list[Request], error: BaseException) -> None:
        for request in requests:
            request.fail(error)
            if request in self.running:
                self._release(request)
