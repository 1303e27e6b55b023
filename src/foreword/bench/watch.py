"""Where the time of a run goes: an observer of an engine's steps.

Steps in which a prompt is read are prefill; the others are decoding, and only they are timed as such. The time of a step
counts from the end of the one before, so that everything between two passes is in it: the controller's own work, the
text, admission.
"""

from collections.abc import Callable
from dataclasses import dataclass

from foreword.bench.reliability import Bins, bins_of
from foreword.engine.llm import LLM
from foreword.engine.step import StepRecord, StepTimes


@dataclass
class DecodeTimes:
    """Sums over the passes of a run."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0  # of decode_s: in the drafter
    target_s: float = 0.0  # of decode_s: in the target's passes
    decode_tokens: int = 0  # emitted by decoding passes
    num_passes: int = 0  # decoding ones
    num_nodes: int = 0  # in those


class Watch:
    """Adds up the steps of an engine since `restart`."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.restart()

    def restart(self) -> None:
        """A run begins."""
        self.times = DecodeTimes()
        self._drafting: list[StepRecord] = []  # looked at once the run is over
        self._last_s = self._now_s()

    def __call__(self, record: StepRecord, times: StepTimes) -> None:
        """Count a step."""
        now_s, sums = self._now_s(), self.times
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        if record.was_prefilling:
            sums.prefill_s += elapsed_s
            return
        sums.decode_s += elapsed_s
        sums.draft_s += times.drafter_s
        sums.target_s += times.target_s
        sums.decode_tokens += sum(record.num_emitted)
        sums.num_passes += 1
        sums.num_nodes += record.num_nodes
        self._drafting.append(record)

    @property
    def bins(self) -> Bins:
        """What became of the drafted tokens, by their stated chances."""
        return bins_of(self._drafting)


def watch(llm: LLM) -> Watch:
    """Put a watch beside an engine."""
    watched = Watch(llm.engine.clock.now_s)
    llm.engine.observers.append(watched)
    return watched
