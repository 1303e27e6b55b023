"""A streamed answer for `async for`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import final

from foreword.engine.input_processor import PreparedPrompt
from foreword.engine.input_threads import InputThreads
from foreword.engine.loop import EngineLoop
from foreword.engine.result import Piece
from foreword.engine.submission import Answer, Submission


@final
class AsyncStream(AsyncIterator[Piece]):
    """Pieces of the answers to one prompt, as they come; `result` is with the last piece of each.

    A reader that goes away ends the request: by `aclose()`, by a cancelled task, or by forgetting the stream. A slow
    reader gets larger pieces. Nothing is asked before the first piece is wanted, or `start` is awaited.
    """

    def __init__(
        self,
        prepare: Callable[[], Sequence[PreparedPrompt]],
        loop: EngineLoop,
        threads: InputThreads,
        timeout_s: float | None = None,
    ) -> None:
        self._prepare, self._loop, self._threads, self._timeout_s = prepare, loop, threads, timeout_s
        self._inbox = _Inbox()
        self._starting = asyncio.Lock()  # whoever comes first starts it, once
        self._submission: Submission | None = None
        self._num_open = 0
        self._is_done = False

    async def start(self) -> "AsyncStream":
        """Check, tokenize and queue the prompt. Errors come here, before the first piece; a second call does nothing."""
        async with self._starting:
            if self._submission is not None or self._is_done:
                return self
            try:
                prompts = await self._threads.run(self._prepare)
                if not self._is_done:  # else it was closed meanwhile
                    self._submit(prompts)
            except BaseException:
                self._is_done = True
                raise
        return self

    def _submit(self, prompts: Sequence[PreparedPrompt]) -> None:
        post = partial(asyncio.get_running_loop().call_soon_threadsafe, self._inbox.put)
        submission = Submission(
            prompts, post, streams=True, hears_of_ends=True, is_blocking=False, timeout_s=self._timeout_s
        )
        self._loop.submit(submission)
        self._submission, self._num_open = submission, submission.num_requests

    async def __anext__(self) -> Piece:
        await self.start()
        if self._is_done:
            raise StopAsyncIteration
        try:
            answer = await self._inbox.get()
            if answer is None:
                raise StopAsyncIteration
            piece = answer.take()
        except BaseException:  # cancelled, or failed
            self._leave()
            raise
        self._num_open -= piece.result is not None
        if self._num_open == 0:
            await self.aclose()
        return piece

    async def rest(self, pause_s: float) -> None:
        """Wait, so that the next piece is larger: for `pause_s` seconds, or until an answer has ended."""
        await self._inbox.rest(pause_s)

    async def aclose(self) -> None:
        """End the request, if it still runs, and the waiting of those who read it. Does not wait for a pass."""
        self._leave()
        self._inbox.close()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        is_open = not self._is_done and self._submission is not None and self._num_open > 0
        self._is_done = True
        if is_open and self._submission is not None:
            self._loop.drop(self._submission)


class _Inbox:
    """What the loop's thread has told a stream's event loop. It knows nothing of the stream, which may be forgotten."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Answer | Exception | None] = asyncio.Queue()  # None: nothing more comes
        self._pending: set[Answer | Exception] = set()  # of the queue
        self._resting: asyncio.Future[None] | None = None  # a reader who waits for more than one event

    def put(self, event: Answer | Exception) -> None:
        if event not in self._pending:  # else the end of an answer whose last news has not been read
            self._pending.add(event)
            self._events.put_nowait(event)
        if _is_end(event):
            self._wake()

    def close(self) -> None:
        self._events.put_nowait(None)
        self._wake()

    async def get(self) -> Answer | None:
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # for another task that waits too
            return None
        self._pending.discard(event)
        if isinstance(event, Exception):
            raise event
        return event

    async def rest(self, seconds: float) -> None:
        if any(map(_is_end, self._pending)):
            return
        loop = asyncio.get_running_loop()
        self._resting = loop.create_future()
        alarm = loop.call_later(seconds, self._wake)
        try:
            await self._resting
        finally:
            alarm.cancel()

    def _wake(self) -> None:
        if self._resting is not None and not self._resting.done():
            self._resting.set_result(None)


def _is_end(event: Answer | Exception) -> bool:
    return isinstance(event, Exception) or event.is_ended
