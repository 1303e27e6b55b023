"""Telling a person how far a download or conversion has come.

Everything slow in this package takes a `Report`: a function called with what is going on, how many bytes are done and
how many there are (None when that is not known). `terminal_progress` makes one that draws a bar on stderr.
"""

import contextlib
from collections.abc import Callable, Iterator

Report = Callable[[str, int, int | None], None]


def silent(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """Report nothing."""


@contextlib.contextmanager
def terminal_progress() -> Iterator[Report]:
    """A bar on stderr for each thing that is reported; nothing is drawn where nothing is."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    tasks = {}
    started = False

    def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
        nonlocal started
        if not started:
            bars.start()
            started = True
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total_bytes)
        bars.update(tasks[what], completed=done_bytes, total=total_bytes)

    try:
        yield report
    finally:
        if started:
            bars.stop()


@contextlib.contextmanager
def reporting(progress: "bool | Report | None") -> Iterator[Report]:
    """The `Report` that a caller's `progress` argument asks for: True draws bars, a function is used as it is."""
    if callable(progress):
        yield progress
    elif progress:
        with terminal_progress() as report:
            yield report
    else:
        yield silent
