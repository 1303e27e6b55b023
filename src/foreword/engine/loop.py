"""The thread that owns an engine. Everyone else leaves it notes, and it reads them between two passes.

    while True:
        read the notes          submit, abort, close; sleeps here when there is nothing to do
        hand requests over      to the engine, as many as may run
        step                    one pass
        tell                    the callers whose answers ended or, streaming, grew

A note is one `SimpleQueue.put`, which may happen anywhere: also in a finalizer that the garbage collector runs in the
middle of a pass, in this thread or another. It takes no lock that interrupted code could hold, and changes nothing.
"""

import heapq
import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import torch

from foreword.engine import process_life
from foreword.engine.engine import Engine
from foreword.engine.input_processor import PreparedPrompt
from foreword.engine.result import FinishReason, RequestId
from foreword.engine.snapshot import EngineSnapshot
from foreword.engine.submission import Answer, Submission
from foreword.errors import ClosedError, ConfigError, ForewordError, QueueFullError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_numbers = itertools.count()


class EngineLoop:
    """Runs an engine in a thread of its own, which begins with the first submission.

    Args:
        engine: touched by that thread alone from then on.
        max_queue: most calls of which nothing has been handed to the engine; None for any number.
    """

    def __init__(self, engine: Engine, max_queue: int | None = None) -> None:
        self.engine, self.max_queue = engine, max_queue
        self._num_submitted = 0  # requests
        self._reset()
        self._refusal: ForewordError | None = None  # why nothing more is taken
        process_life.watch(self)

    def _reset(self) -> None:
        self._notes: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = threading.RLock()  # of submitters among themselves; the thread never takes it
        self._thread: threading.Thread | None = None
        self._queued: dict[Submission, None] = {}  # of which nothing has begun
        self._live: dict[RequestId, Submission] = {}
        self._backlog: deque[Submission] = deque()  # with requests that the engine does not have yet
        self._open: list[Answer] = []  # of requests that the engine has
        self._deadlines: list[tuple[float, int, weakref.ref[Submission]]] = []  # a heap; the number parts equal times
        self._is_asleep = False  # the thread waits for a note, and nothing is half done
        self._ending: str | None = None  # "drain" or "now"

    # --- for everyone

    def submit(self, submission: Submission) -> None:
        """Queue a call. `QueueFullError`, `ClosedError`, or `ConfigError` for an id that is in use."""
        if threading.current_thread() is self._thread:
            raise ForewordError(
                "an LLM was asked from its own thread, where a logits processor, a drafter or a finalizer runs: "
                "it would wait for itself; ask from another thread"
            )
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._check_room()
            for prompt in submission.prompts:
                if prompt.request_id in self._live:
                    raise ConfigError(f"request id {prompt.request_id!r} is in use; give each running request its own")
            self._live |= {prompt.request_id: submission for prompt in submission.prompts}
            self._queued[submission] = None
            self._num_submitted += submission.num_requests
            submission.is_submitted = True
            self._notes.put(partial(self._receive, submission))
            if self._thread is None:
                self._start()

    def _check_room(self) -> None:
        """`QueueFullError` where more calls wait than may, beside those that the batch has room for."""
        engine = self.engine
        free = max(engine.batch_size - len(engine.running) - len(engine.waiting), 0)
        if self.max_queue is not None and len(self._queued) >= self.max_queue + free:
            raise QueueFullError(len(self._queued), self.max_queue)

    def _start(self) -> None:
        # A new thread of torch does not know what was set in this one.
        run = partial(self._run, torch.get_num_threads())
        thread = self._thread = threading.Thread(target=run, name="foreword-engine", daemon=True)
        process_life.begins(thread)
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:  # Ctrl-C, or no more threads: the next call tries again
                self._thread = None
            raise

    def abort(self, request_id: RequestId) -> None:
        """Leave a note to end a request. Its caller gets what there is; an id that is not in use is ignored."""
        self._notes.put(partial(self._abort, request_id))

    def drop(self, submission: Submission) -> None:
        """Leave a note that nobody waits for a call any more."""
        self._notes.put(partial(self._drop, submission))

    def snapshot(self) -> EngineSnapshot:
        """What the engine has done so far."""
        engine = self.engine
        return engine.metrics.snapshot(self._num_submitted, len(engine.running), engine.stats)

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Run a function between two passes, when earlier notes have been read."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        if self._thread is None:
            run()
        else:
            self._notes.put(run)
        return future

    def end(self) -> None:
        """Leave a note to end the thread: nobody can ask any more."""
        self._notes.put(partial(self._end, "now"))

    @property
    def refusal(self) -> ForewordError | None:
        """Why no more calls are taken; None while they are."""
        return self._refusal

    def close(self, drain: bool = False) -> None:
        """Take no more calls; end the running ones with `ClosedError`, or let them finish; wait for the thread."""
        with self._lock:
            if self._refusal is None:
                self._refusal = ClosedError("this LLM is closed; make a new one")
            thread = self._thread
            self._notes.put(partial(self._end, "drain" if drain else "now"))
        if thread is None:
            self.engine.close()
        elif thread is not threading.current_thread():
            thread.join()

    # --- the thread

    def _run(self, num_torch_threads: int) -> None:
        torch.set_num_threads(num_torch_threads)
        error: ForewordError = ClosedError("this LLM was closed while the request was running")
        try:
            with torch.no_grad():
                while self._read_notes():
                    self._end_late()
                    self._hand_over()
                    self._step()
                    self._tell()
                    if self._open:
                        self.engine.save(is_idle=False)
        except (
            BaseException
        ) as fault:  # not a pass that failed: a fault of the loop, after which nothing can be trusted
            logger.exception("the engine's loop has ended")
            self._refusal = error = ForewordError(f"the engine's loop was ended by {fault!r}; make a new LLM")
        self._end_all(error)

    def _read_notes(self) -> bool:
        """Whether to go on."""
        while True:
            is_idle = not self._open and not self._backlog
            if self._ending == "now" or (self._ending == "drain" and is_idle and self._notes.empty()):
                return False
            if is_idle:
                self._is_asleep = True  # a fork may cut the saving: the parent goes on with it
                while self._notes.empty() and self.engine.save(is_idle=True):
                    pass
                note = self._notes.get()
                self._is_asleep = False
            elif self._notes.empty():
                return True
            else:
                note = self._notes.get()  # nobody else takes notes
            note()

    def _receive(self, submission: Submission) -> None:
        self._backlog.append(submission)
        if submission.deadline_s is not None:
            heapq.heappush(self._deadlines, (submission.deadline_s, next(_numbers), weakref.ref(submission)))

    def _abort(self, request_id: RequestId) -> None:
        submission = self._live.get(request_id)
        if submission is None:
            return
        self._end_early(submission, "abort", submission.prompt_of(request_id))

    def _end_late(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= time.perf_counter():
            submission = heapq.heappop(self._deadlines)[2]()
            if submission is not None:
                self._end_early(submission, "timeout")

    def _end_early(self, submission: Submission, reason: FinishReason, prompt: PreparedPrompt | None = None) -> None:
        """End what has not ended of a call, or of one of its prompts, and tell its caller."""
        for answer in self._open:
            if answer.submission is submission and prompt in (None, answer.prompt):
                self.engine.abort(answer.request, reason)
        try:
            unmade = submission.end_unmade(reason, prompt)
        except Exception as error:  # making a request calls what its owner gave, such as a processor's clone()
            self._refuse(submission, error)
            return
        for answer in unmade:
            self.engine.metrics.ended(answer.request, has_started=False)
        self._open += unmade
        self._tell()

    def _drop(self, submission: Submission) -> None:
        if not submission.is_submitted:
            return
        for answer in self._open:
            if answer.submission is submission:
                self.engine.abort(answer.request)
        self.engine.metrics.dropped(submission.num_requests - submission.num_made)
        submission.num_made = submission.num_requests
        self._forget(submission)

    def _end(self, how: str) -> None:
        self._ending = how

    def _hand_over(self) -> None:
        room = self.engine.batch_size - len(self.engine.running) - len(self.engine.waiting)
        while room > 0 and self._backlog:
            submission = self._backlog[0]
            try:
                answer = submission.next_answer()
            except Exception as error:
                self._refuse(submission, error)
                continue
            if answer is None:
                self._backlog.popleft()
                self._queued.pop(submission, None)
                continue
            self._queued.pop(submission, None)
            self._open.append(answer)
            self.engine.add(answer.request)
            room -= not answer.request.is_finished

    def _step(self) -> None:
        try:
            self.engine.step()
        except BaseException as error:
            if not any(answer.request.error is not None for answer in self._open):
                self.engine.fail(error)  # or it would be met again and again

    def _tell(self) -> None:
        """Tell those whose answers ended or grew."""
        still_open, failed = [], []
        for answer in self._open:
            submission = answer.submission
            try:
                if answer.look():
                    submission.post(answer)
            except Exception as error:
                failed.append((submission, error))
            if not answer.request.is_finished:
                still_open.append(answer)
            else:
                self._count_end(answer)
        self._open = still_open
        for submission, error in failed:
            self._refuse(submission, error)

    def _count_end(self, answer: Answer) -> None:
        submission, prompt = answer.submission, answer.prompt
        submission.num_left[prompt] -= 1
        if submission.num_left[prompt] == 0:
            self._live.pop(prompt.request_id, None)

    def _refuse(self, submission: Submission, error: Exception) -> None:
        """End a call for an error of its own."""
        self._drop(submission)
        try:
            submission.post(error)
        except Exception:  # its event loop is gone, and so is whoever waited there
            logger.debug("nobody hears of %r", error, exc_info=True)

    def _forget(self, submission: Submission) -> None:
        self._open = [answer for answer in self._open if answer.submission is not submission]
        if submission in self._backlog:
            self._backlog.remove(submission)
        self._queued.pop(submission, None)
        for prompt in submission.prompts:
            if self._live.get(prompt.request_id) is submission:
                del self._live[prompt.request_id]

    def _end_all(self, error: ForewordError) -> None:
        with self._lock:  # no call is between its check and its note
            if self._refusal is None:
                self._refusal = error
        while not self._notes.empty():
            try:
                self._notes.get()()
            except Exception:
                logger.debug("a note was left to an engine that has ended", exc_info=True)
        self.engine.fail(error)
        for submission in dict.fromkeys([answer.submission for answer in self._open] + list(self._backlog)):
            self._refuse(submission, error)
        self.engine.close(saves=isinstance(error, ClosedError))

    # --- the process

    def after_fork(self) -> None:
        """In the child, where the thread does not exist: a new one takes over, unless the old one was at work."""
        was_at_work = self._thread is not None and not self._is_asleep
        left = dict.fromkeys([answer.submission for answer in self._open] + list(self._backlog))
        self._reset()
        if was_at_work and self._refusal is None:
            self._refusal = ClosedError(
                f"process {os.getpid()} was forked while this LLM was answering, so that what it has of it is half "
                "done; fork when it is idle, load the model in the child, or start the child by 'spawn'"
            )
        for submission in left:
            if submission.is_blocking and self._refusal is not None:
                submission.post(self._refusal)
