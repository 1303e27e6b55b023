"""Telling a person how far something slow has come: a download, a conversion, the packing and loading of weights.

Everything slow in this package takes a `Report`: a function called with what is going on, how many bytes are done and
how many there are (None when that is not known). `terminal_progress` makes one that draws a bar on stderr. Within
`reporting` it is also what `reported` calls, for what lies too deep to be handed one.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

logger = logging.getLogger(__name__)

Report = Callable[[str, int, int | None], None]

_LONG_S, _EVERY_S = 15.0, 60.0  # a wait that is told where no bars are wanted, and how often after that


def silent(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """Report nothing."""


_current: ContextVar[Report] = ContextVar("report", default=silent)


def reported(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """Tell whoever is being reported to."""
    _current.get()(what, done_bytes, total_bytes)


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


def long_waits(clock: Callable[[], float] = time.monotonic) -> Report:
    """One that says nothing but where a wait is long: a line in the log, and another each minute."""
    told_s = clock() + _LONG_S - _EVERY_S

    def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
        nonlocal told_s
        if clock() - told_s >= _EVERY_S and done_bytes != total_bytes:
            told_s = clock()
            share = f"{100 * done_bytes / total_bytes:.0f} %" if total_bytes else f"{done_bytes / 1e6:.0f} MB"
            logger.warning("%s takes a while: %s so far", what, share)

    return report


@contextlib.contextmanager
def reporting(progress: "bool | Report | None") -> Iterator[Report]:
    """The `Report` that a caller's `progress` argument asks for: True draws bars, a function is used as it is.

    Without one, only long waits are told.
    """
    with contextlib.ExitStack() as stack:
        if callable(progress):
            report = progress
        elif progress:
            report = stack.enter_context(terminal_progress())
        else:
            report = long_waits()
        before = _current.set(report)
        stack.callback(_current.reset, before)
        yield report
