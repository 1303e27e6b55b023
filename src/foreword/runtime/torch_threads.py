"""Torch's threads and a runtime's own on the same cores.

A torch operation on a large tensor wakes a thread a core, and those go on spinning for tens of milliseconds, in case there
is more. A runtime with threads of its own finds its cores taken: one pass of eight took several times as long. Beside
such a runtime torch does its share of a step, which is small, on one thread.
"""

import torch


class TorchThreads:
    """A block in which torch has so many threads, and as many as before afterwards; None changes nothing.

    Takes a microsecond. Not for blocks within each other.
    """

    def __init__(self, num_threads: int | None) -> None:
        self._num_threads, self._before = num_threads, 0

    def __enter__(self) -> None:
        if self._num_threads is not None:
            self._before = torch.get_num_threads()
            torch.set_num_threads(self._num_threads)

    def __exit__(self, *_: object) -> None:
        if self._num_threads is not None:
            torch.set_num_threads(self._before)
