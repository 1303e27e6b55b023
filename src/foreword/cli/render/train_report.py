"""How a training run shows how far it is: bars where a terminal shows them, else a line now and then."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.cli.output import count_text, note

if TYPE_CHECKING:
    from foreword.train.loop.resume_state import Progress
    from foreword.train.loop.training_loop import Status
    from foreword.train.methods.method import Measures
    from foreword.train.out.live_speed import Speeds

_LINE_EVERY_S = 20.0
_PAYS, _LEAST_PROMPTS = 1.02, 4  # times as fast; held-out prompts that say so


class _Phase:
    """How fast a phase is and how long it takes: never longer than it may."""

    def __init__(
        self, most_s: float = math.inf, unit: str = "tokens", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._end_s, self.unit, self._clock = clock() + most_s, unit, clock
        self._first: tuple[float, int] | None = None

    def rate_text(self, done: int, total: int) -> str:
        """How many per second since the first call, and the time left; empty before there are any."""
        now = self._clock()
        if self._first is None:
            self._first = now, done
        seconds, count = now - self._first[0], done - self._first[1]
        if count <= 0 or seconds <= 0:
            return ""
        left_s = min((total - done) * seconds / count, self._end_s - now)
        return f", {count / seconds:.0f} {'tok' if self.unit == 'tokens' else self.unit}/s, {_clock(max(left_s, 0.0))} left"


class LineReporter:
    """A line on stderr at each phase and measurement, and every 20 seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown_s, self._clock = 0.0, clock
        self._phase = _Phase(clock=clock)

    def phase(self, text: str, most_s: float = math.inf, unit: str = "tokens") -> None:
        """Say what begins."""
        self._phase = _Phase(most_s, unit, self._clock)
        note(text)

    def data(self, done: int, total: int) -> None:
        """Count, rate, time left."""
        now, rate = self._clock(), self._phase.rate_text(done, total)
        if now - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = now
            note(f"  {done:,} of {total:,} {self._phase.unit}{rate}")

    def status(self, status: "Status") -> None:
        """Loss, accuracy by depth, rate, time left."""
        now = self._clock()
        if now - self._shown_s >= _LINE_EVERY_S or status.measures is not None:
            self._shown_s = now
            note(f"  {100 * status.done:5.1f} %, {status_text(status)}, {_clock(status.left_s)} left")

    def best(self, measures: "Measures", verified: Mapping[str, Any] | None) -> None:
        """What was reached."""
        note(f"  saved: {best_text(measures, verified)}")


class BarReporter:
    """Bars on stderr."""

    def __init__(self, bars: Any) -> None:
        self._bars, self._task, self._phase = bars, None, _Phase()

    def phase(self, text: str, most_s: float = math.inf, unit: str = "tokens") -> None:
        """A bar of its own."""
        self._phase = _Phase(most_s, unit)
        if self._task is not None:
            self._bars.stop_task(self._task)
        self._task = self._bars.add_task(text, total=None, text="")

    def data(self, done: int, total: int) -> None:
        """Move it."""
        text = f"{done:,} of {total:,} {self._phase.unit}{self._phase.rate_text(done, total)}"
        self._bars.update(self._task, completed=done, total=total, text=text)

    def status(self, status: "Status") -> None:
        """Move it; loss and accuracy beside it."""
        text = f"{status_text(status)}, {_clock(status.left_s)} left"
        self._bars.update(self._task, completed=status.done, total=1.0, text=text)

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
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[text]}"))
    with Bars(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False) as bars:
        yield BarReporter(bars)


def status_text(status: "Status") -> str:
    """Loss and accuracy by depth."""
    depths = " ".join(f"{rate:.2f}" for rate in status.accuracy)
    return f"epoch {status.epoch:.2f}, loss {status.loss:.3f}, right by depth {depths}, {status.tok_per_s:.0f} tok/s"


def speeds_text(speeds: "Speeds", drafter: str) -> str:
    """Whether it is faster here; too few prompts do not tell."""
    count = speeds.num_prompts
    head = (
        f"on this machine {'a held-out answer comes' if count == 1 else 'held-out answers come'} {speeds.ratio:.2f} times as fast with "
        f"it ({speeds.drafted_tok_per_s:.0f} tok/s, without {speeds.plain_tok_per_s:.0f}; {count_text(count, 'prompt')}, greedy"
        f"{'' if count == 1 else ', one at a time'})"
    )
    if count < _LEAST_PROMPTS:
        return (
            f"{head}: too few held-out prompts to tell ({count}; {_LEAST_PROMPTS} are needed). Give more prompts or a "
            f"longer --time-budget, or run 'foreword tune --drafters auto,{drafter}'"
        )
    if speeds.ratio >= _PAYS:
        return f"{head}: it is faster"
    return (
        f"{head}: it is not faster here yet. More time or data may help; --adaptive uses it only where it is faster, and "
        f"'foreword tune --drafters auto,{drafter}' compares it with drafting that needs no training"
    )


def best_text(measures: "Measures", verified: Mapping[str, Any] | None) -> str:
    """The held-out measures."""
    depths = " ".join(f"{rate:.2f}" for rate in measures.accept_by_depth)
    live = "" if verified is None else f", {verified['tokens_per_step']:.2f} by the verifier"
    return f"{measures.tokens_per_step:.2f} tokens per step in chains{live}; accepted by depth {depths}{_tuned_text(measures.also)}"


def result_text(progress: "Progress", use: str) -> str:
    """What a run came to, and how to use it. What is counted takes no steps."""
    steps = f"{count_text(progress.step, 'step')}, " if progress.step else ""
    tokens = count_text(progress.num_tokens, "answer token")
    return f"{steps}{tokens}; best: {progress.best:.2f} tokens per step on held-out prompts (chains). {use}"


def kept_text(out: Path, data: Path | None) -> str:
    """What a run that was stopped leaves, and how it is resumed."""
    data = data or out / "data"
    if not any(data.glob("answers/*.jsonl")):
        own = data / "own_prompts.jsonl"
        kept = f"the prompts so far are kept in {own}; the same command resumes from there"
        return kept if own.is_file() else "there is no answer to keep yet; the same command starts again"
    answers = f"the answers so far are kept in {data}"
    trained = (out / "resume" / "checkpoint.pt").is_file()
    also = f" and the training in {out}, up to its last checkpoint (at most two minutes ago)" if trained else ""
    return f"{answers}{also}; the same command resumes from there"


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
