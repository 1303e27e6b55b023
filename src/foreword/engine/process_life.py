"""The threads of engines in the life of their process: it ends, and it forks.

A thread that still runs when the interpreter goes is killed at its next touch of Python, which C++ under it does not
survive. So all of them are waited for, those too that only let go of an engine whose owner has forgotten it.
"""

import atexit
import os
import threading
import weakref
from typing import Protocol


class Living(Protocol):
    """What has a thread."""

    def close(self) -> None:
        """End the thread and wait for it."""
        ...

    def after_fork(self) -> None:
        """In a child, which has no threads but the one that forked."""
        ...


_living: "weakref.WeakSet[Living]" = weakref.WeakSet()
_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def watch(one: Living) -> None:
    """Close it when the process ends, and tell it of forks."""
    _living.add(one)


def begins(thread: threading.Thread) -> None:
    """Wait for a thread when the process ends. Call it before the thread starts.

    That is after the threads that Python itself waits for, and before anything that passes need ends too: what was
    registered last comes first, and the kernels, imported with the first model, register something themselves.
    """
    _threads.add(thread)
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    for one in list(_living):
        one.close()
    for thread in list(_threads):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join()


def _after_fork() -> None:
    _threads.clear()
    for one in list(_living):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
