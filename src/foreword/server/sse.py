"""Server-sent events, and what happens where a client goes away."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from foreword.engine.async_stream import AsyncStream
from foreword.engine.result import Piece
from foreword.server.errors import ClientGone, as_api_error

T = TypeVar("T")

DONE = "data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy that collects first would undo streaming


def event(data: Any, name: str | None = None) -> str:
    """One event; `name` where the API names its events."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def streaming(events: AsyncIterator[str]) -> StreamingResponse:
    """A streamed answer. What is wrong with the request is told before it begins, with a status of its own.

    The client's connection takes as much as it reads; meanwhile the engine keeps the rest of an answer as one piece.
    """
    first = await anext(events)
    return StreamingResponse(_all(first, events), media_type="text/event-stream", headers=_HEADERS)


async def _all(first: str, events: AsyncIterator[str]) -> AsyncIterator[str]:
    try:
        yield first
        async for one in events:
            yield one
    except Exception as error:  # too late for a status
        yield event(as_api_error(error).body)
        yield DONE
    finally:
        await events.aclose()  # type: ignore[attr-defined]


async def paced(stream: AsyncStream, pause_s: float) -> AsyncIterator[Piece]:
    """The same text in fewer pieces: after each a pause, which an answer's end cuts short, and what comes in it is the next.

    An event costs a server and its client some half a millisecond of the processor that the model runs on, and nobody sees
    more than some 25 a second. The first piece comes at once.
    """
    async for piece in stream:
        yield piece
        if piece.result is None and pause_s > 0:
            await stream.rest(pause_s)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, which is cancelled if the client goes away before it is there."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, watch):
            if not one.done():
                one.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await one


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
