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
        self._events: asyncio.Queue[Answer | Exception | None] = asyncio.Queue()  # None: nothing more comes
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
        post = partial(asyncio.get_running_loop().call_soon_threadsafe, self._events.put_nowait)
        submission = Submission(prompts, post, streams=True, is_blocking=False, timeout_s=self._timeout_s)
        self._loop.submit(submission)
        self._submission, self._num_open = submission, submission.num_requests

    async def __anext__(self) -> Piece:
        await self.start()
        if self._is_done:
            raise StopAsyncIteration
        try:
            event = await self._events.get()
            if event is None:
                self._events.put_nowait(None)  # for another task that waits too
                raise StopAsyncIteration
            if isinstance(event, Exception):
                raise event
            piece = event.take()
        except BaseException:  # cancelled, or failed
            self._leave()
            raise
        self._num_open -= piece.result is not None
        if self._num_open == 0:
            await self.aclose()
        return piece

    async def aclose(self) -> None:
        """End the request, if it still runs, and the waiting of those who read it. Does not wait for a pass."""
        self._leave()
        self._events.put_nowait(None)

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        is_open = not self._is_done and self._submission is not None and self._num_open > 0
        self._is_done = True
        if is_open and self._submission is not None:
            self._loop.drop(self._submission)
