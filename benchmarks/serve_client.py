"""A server in a process of its own, and a client that measures what it streams."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

Client = httpx2.AsyncClient
_READY = re.compile(r"at (http://[^\s]+/v1)")


@dataclass
class Streamed:
    """One answer, as it came."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)  # where the server tells them
    completion_tokens: int = 0
    first_s: float = 0.0  # from sending to the first text
    total_s: float = 0.0  # from sending to the end
    status: int = 200
    was_dropped: bool = False


@dataclass(frozen=True)
class Server:
    """One that answers."""

    url: str  # with /v1
    pid: int | None = None

    @property
    def rss_bytes(self) -> int:
        """Memory that it holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def root(self) -> str:
        """Without /v1."""
        return self.url.removesuffix("/v1")


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Server]:
    """`foreword serve` with these options, on a free port, until the block ends."""
    command = [sys.executable, "-m", "foreword", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        told = []
        for line in process.stderr:
            told.append(line)
            if found := _READY.search(line):
                break
        else:
            raise RuntimeError("the server did not start:\n" + "".join(told))
        threading.Thread(target=process.stderr.read, daemon=True).start()  # else a full pipe would stop it
        yield Server(found.group(1), process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Client]:
    """A client with a connection per request under way."""
    limits = httpx2.Limits(max_connections=300, max_keepalive_connections=300)
    async with httpx2.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        yield client


async def ask(client: Client, body: dict[str, Any], drop_after_s: float | None = None) -> Streamed:
    """Stream one answer; leave after `drop_after_s` where that is given."""
    got = Streamed()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drop_after_s):
            await _stream(client, body, got)
            return got
    got.was_dropped = True
    return got


async def _stream(client: Client, body: dict[str, Any], got: Streamed) -> None:
    path = "/chat/completions" if "messages" in body else "/completions"
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    start_s = time.perf_counter()
    async with client.stream("POST", path, json=body) as response:
        got.status = response.status_code
        if got.status != 200:
            await response.aread()
            return
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _read(json.loads(line.removeprefix("data: ")), got, time.perf_counter() - start_s)
    got.total_s = time.perf_counter() - start_s


def _read(chunk: dict[str, Any], got: Streamed, now_s: float) -> None:
    if chunk.get("usage"):
        got.completion_tokens = chunk["usage"]["completion_tokens"]
    for choice in chunk.get("choices", ()):
        text = choice["text"] if "text" in choice else choice["delta"].get("content")
        if text:
            got.first_s = got.first_s or now_s
            got.text += text
        got.token_ids += choice.get("token_ids") or ()


async def load(client: Client, bodies: Sequence[dict[str, Any]], num_clients: int) -> tuple[list[Streamed], float]:
    """Clients that each ask the next thing as soon as they have been answered; answers in order, and the seconds it took."""
    answers: list[Streamed | None] = [None] * len(bodies)
    left = iter(range(len(bodies)))

    async def one_client() -> None:
        for place in left:
            answers[place] = await ask(client, bodies[place])

    start_s = time.perf_counter()
    await asyncio.gather(*(one_client() for _ in range(num_clients)))
    return [answer for answer in answers if answer is not None], time.perf_counter() - start_s
