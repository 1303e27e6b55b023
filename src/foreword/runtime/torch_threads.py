"""Torch's threads and a runtime's own on the same cores.

A torch operation on a large tensor wakes a thread a core, and those go on spinning for tens of milliseconds, in case there
is more. A runtime with threads of its own finds its cores taken: one pass of eight took several times as long. Beside
such a runtime torch does its share of a step, which is small, on one thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(num_threads: int | None) -> Iterator[None]:
    """Torch with so many threads, as before afterwards; None changes nothing. Takes a microsecond."""
    before = torch.get_num_threads()
    if num_threads is None or num_threads == before:
        yield
        return
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
