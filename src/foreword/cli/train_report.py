"""How a training run shows how far it is: bars where a terminal shows them, else a line now and then."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from foreword.cli.output import note

if TYPE_CHECKING:
    from foreword.train.loop import Status
    from foreword.train.method import Measures
    from foreword.train.pays import Speeds

_LINE_EVERY_S = 20.0
_PAYS = 1.02


class LineReporter:
    """A line on stderr at each phase and measurement, and every 20 seconds."""

    def __init__(self) -> None:
        self._shown_s = 0.0
        self._first: tuple[float, int] | None = None

    def phase(self, text: str) -> None:
        """Say what begins."""
        self._first = None
        note(text)

    def data(self, done: int, total: int) -> None:
        """Tokens, rate, time left."""
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
        if now - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = now
            note(f"  {done:,} of {total:,} tokens{self._rate(now, done, total)}")

    def status(self, status: "Status") -> None:
        """Loss, accuracy by depth, rate, time left."""
        now = time.monotonic()
        if now - self._shown_s >= _LINE_EVERY_S or status.measures is not None:
            self._shown_s = now
            note(f"  {100 * status.done:5.1f} %, {status_text(status)}, {_clock(status.left_s)} left")

    def best(self, measures: "Measures", verified: Mapping[str, Any] | None) -> None:
        """What was reached."""
        note(f"  saved: {best_text(measures, verified)}")

    def _rate(self, now: float, done: int, total: int) -> str:
        assert self._first is not None
        seconds, tokens = now - self._first[0], done - self._first[1]
        if tokens <= 0:
            return ""
        return f", {tokens / seconds:.0f} tok/s, {_clock((total - done) * seconds / tokens)} left"


class BarReporter:
    """Bars on stderr."""

    def __init__(self, bars: Any) -> None:
        self._bars, self._task = bars, None

    def phase(self, text: str) -> None:
        """A bar of its own."""
        if self._task is not None:
            self._bars.stop_task(self._task)
        self._task = self._bars.add_task(text, total=None, text="")

    def data(self, done: int, total: int) -> None:
        """Move it."""
        self._bars.update(self._task, completed=done, total=total, text=f"{done:,} of {total:,} tokens")

    def status(self, status: "Status") -> None:
        """Move it; loss and accuracy beside it."""
        self._bars.update(self._task, completed=status.done, total=1.0, text=status_text(status))

    def best(self, measures: "Measures", verified: Mapping[str, Any] | None) -> None:
        """A line above the bars."""
        self._bars.console.print(f"saved: {best_text(measures, verified)}", markup=False, highlight=False)


@contextmanager
def reporting() -> Iterator[LineReporter | BarReporter]:
    """The reporter that suits stderr."""
    if not sys.stderr.isatty():
        yield LineReporter()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False) as bars:
        yield BarReporter(bars)


def status_text(status: "Status") -> str:
    """Loss and accuracy by depth."""
    depths = " ".join(f"{rate:.2f}" for rate in status.accuracy)
    return f"epoch {status.epoch:.2f}, loss {status.loss:.3f}, right by depth {depths}, {status.tok_per_s:.0f} tok/s"


def speeds_text(speeds: "Speeds", drafter: str) -> str:
    """Whether it pays here, in words."""
    head = (
        f"on this machine held-out answers come {speeds.ratio:.2f} times as fast with it ({speeds.drafted_tok_per_s:.0f} tok/s, "
        f"without {speeds.plain_tok_per_s:.0f}; {speeds.num_prompts} prompts, greedy, one at a time)"
    )
    if speeds.ratio >= _PAYS:
        return f"{head}: it pays"
    return (
        f"{head}: it does not pay here yet. More time or data may help; --adaptive uses it only where it pays, and "
        f"'foreword tune --drafters auto,{drafter}' compares it with drafting that needs no training"
    )


def best_text(measures: "Measures", verified: Mapping[str, Any] | None) -> str:
    """The held-out measures."""
    depths = " ".join(f"{rate:.2f}" for rate in measures.accept_by_depth)
    live = "" if verified is None else f", {verified['tokens_per_step']:.2f} by the verifier"
    return f"{measures.tokens_per_step:.2f} tokens a step in chains{live}; accepted by depth {depths}{_tuned_text(measures.also)}"


def use_text(method: str, folder: object) -> str:
    """How to draft with what was trained."""
    what = "The tuned model and its heads are" if method == "medusa2" else "It is"
    return f"{what} in {folder}; to use: --drafter {drafter_text(method, folder)}"


def drafter_text(method: str, folder: object) -> str:
    """What stands after --drafter; heads of a tuned model draft for that model alone."""
    return f"medusa2 --model {folder}" if method == "medusa2" else f"{method}={folder}"


def _tuned_text(found: Mapping[str, float]) -> str:
    if not found:
        return ""
    return (
        f"; the tuned model is another one: perplexity {found['perplexity_tuned']:.3f}, the original's "
        f"{found['perplexity_original']:.3f} ({found['perplexity_change_percent']:+.2f} %)"
    )


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
