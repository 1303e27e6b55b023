"""A few threads for what an event loop must not wait for: tokenizing, compiling grammars, decoding a long answer."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_NUM_THREADS = 4  # a grammar that takes seconds to compile leaves three to others


class InputThreads:
    """Threads of their own, so that nothing waits behind other users of the default executor. Made when first used."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """The function's result; the event loop is free meanwhile."""
        if self._pool is None or self._process != os.getpid():  # a forked child has none of its parent's threads
            self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="foreword-input")
            self._process = os.getpid()
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self) -> None:
        """End them once they are idle."""
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown(wait=False)
        self._pool = None
