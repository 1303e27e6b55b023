"""What goes to stdout and stderr: data there, everything else here, bars only where a terminal shows them."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

_PIPED_WIDTH = 120


def print_json(data: Any) -> None:
    """One line of JSON on stdout, at once, for programs that read along.

    Escaped to ASCII: it survives any terminal encoding, and no reader takes a U+2028 in a text for the end of the line.
    """
    print(json.dumps(data), flush=True)


def note(text: str) -> None:
    """One line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def count_text(number: int, what: str) -> str:
    """A number of things whose plural ends in s."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def console() -> "Console":
    """Tables on stdout; plain text, and always as wide, where no terminal shows them."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


@contextmanager
def time_bar(label: str, budget_s: float) -> "Iterator[Callable[[], None]]":
    """A bar on stderr of how much of a time is over, redrawn at each call and meanwhile; nothing where there is no terminal.

    Lines that go to stderr stand above it.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn(f"of {budget_s:.0f} s"))
    begun_s = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, transient=True) as bars:
        task = bars.add_task(label, total=budget_s)
        yield lambda: bars.update(task, completed=min(time.monotonic() - begun_s, budget_s))


@contextmanager
def progress_bar(
    label: str, total: int, is_wanted: bool = True, *, data_comes_after: bool = False
) -> "Iterator[Callable[[], None]]":
    """A bar on stderr that moves one on at each call; nothing where there is no terminal, or data goes there too.

    `data_comes_after`: nothing is printed on stdout while the bar is there, so they may share a terminal.
    """
    shares_screen = sys.stdout.isatty() and not data_comes_after
    if not is_wanted or total < 2 or not sys.stderr.isatty() or shares_screen:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Rich would otherwise send stdout through its console, which is stderr.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False) as bars:
        task = bars.add_task(label, total=total)
        yield lambda: bars.advance(task)
