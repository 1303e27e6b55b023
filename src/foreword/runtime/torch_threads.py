"""Torch's threads and a runtime's own on the same cores.

A torch operation on a large tensor wakes one thread per core, and those go on spinning for tens of milliseconds, in case there
is more. A runtime with threads of its own finds its cores taken: one pass of eight took several times as long. Beside
such a runtime torch does its share of a step, which is small, on one thread.
"""

import os
import threading

import torch

_lock = threading.Lock()
_num_inside = 0
_outside = 1  # torch's threads where nobody is in such a block


class TorchThreads:
    """A block in which torch has so many threads, and as many as before afterwards; None changes nothing.

    Takes a microsecond. Blocks of several threads may overlap: each sets back what was there before the first began. A
    thread of the process that does its first work with torch meanwhile keeps the block's number, as torch has it.
    """

    def __init__(self, num_threads: int | None) -> None:
        self._num_threads = num_threads

    def __enter__(self) -> None:
        global _num_inside, _outside
        if self._num_threads is None:
            return
        with _lock:
            if _num_inside == 0:
                _outside = torch.get_num_threads()
            _num_inside += 1
        torch.set_num_threads(self._num_threads)

    def __exit__(self, *_: object) -> None:
        global _num_inside
        if self._num_threads is None:
            return
        with _lock:
            _num_inside -= 1
        torch.set_num_threads(_outside)


def _after_fork() -> None:
    """In the child nobody is inside: the threads that were do not exist there."""
    global _lock, _num_inside
    _lock = threading.Lock()
    if _num_inside:
        torch.set_num_threads(_outside)
    _num_inside = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
