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
        self._events: asyncio.Queue[Answer | Exception] = asyncio.Queue()
        self._submission: Submission | None = None
        self._num_open = 0
        self._is_done = False

    async def start(self) -> "AsyncStream":
        """Check, tokenize and queue the prompt. Errors come here, before the first piece; a second call does nothing."""
        if self._submission is not None or self._is_done:
            return self
        try:
            prompts = await self._threads.run(self._prepare)
            post = partial(asyncio.get_running_loop().call_soon_threadsafe, self._events.put_nowait)
            submission = Submission(prompts, post, streams=True, is_blocking=False, timeout_s=self._timeout_s)
            self._loop.submit(submission)
        except BaseException:
            self._is_done = True
            raise
        self._submission, self._num_open = submission, submission.num_requests
        return self

    async def __anext__(self) -> Piece:
        await self.start()
        if self._is_done:
            raise StopAsyncIteration
        try:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            piece = event.take()
        except BaseException:  # cancelled, or failed
            self._leave()
            raise
        self._num_open -= piece.result is not None
        if self._num_open == 0:
            self._leave()
        return piece

    async def aclose(self) -> None:
        """End the request, if it still runs. Does not wait for a pass."""
        self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        is_open = not self._is_done and self._submission is not None and self._num_open > 0
        self._is_done = True
        if is_open and self._submission is not None:
            self._loop.drop(self._submission)
