"""How far a benchmark is: a bar with the time left where a terminal shows one, else a line every half minute."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foreword.cli.output import note, progress_bar

_LINE_EVERY_S = 30.0


@contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """Call what it gives once a run."""
    if sys.stderr.isatty():
        with progress_bar("runs", total, data_comes_after=True) as advance:
            yield advance
        return
    start_s = shown_s = time.monotonic()
    done = 0

    def advance_line() -> None:
        nonlocal done, shown_s
        done, now_s = done + 1, time.monotonic()
        if now_s - shown_s >= _LINE_EVERY_S and done < total:
            left_s = (now_s - start_s) / done * (total - done)
            note(f"{done} of {total} runs, about {max(1, round(left_s / 60))} min left")
            shown_s = now_s

    yield advance_line
