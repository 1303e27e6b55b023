"""The measuring itself: all cells over one loaded model, in turns, each answer compared with the plain one.

    for each repeat: for each mode: for each group of prompts: for each cell        A B C, A B C, ...: machines are noisy

Drafters begin every repeat anew, so that none profits from having seen the same prompts before, and are warmed up. The
first answers of a mode's baseline are what all others are compared with, in every repeat. A cell with a difference that nothing
explains is not run again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foreword.bench.cells import MATCH, PROFILE, Cell, Mode
from foreword.bench.differences import all_differences
from foreword.bench.fidelity import Difference
from foreword.bench.methods import method_facts
from foreword.bench.results import Answer, BenchResult, Run
from foreword.bench.watch import Watch, watch
from foreword.bench.workloads import BenchPrompt, ids_sha256, in_groups
from foreword.engine.llm import LLM
from foreword.engine.result import Result
from foreword.errors import ConfigError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import LoadedModel

_WARM_UP_PROMPT, _WARM_UP_TOKENS = 16, 8
_SAVE_EVERY_S = 10.0
SYNTHETIC = "synthetic"

MakeLLM = Callable[[LoadedModel, Cell], LLM]


def make_llm(model: LoadedModel, cell: Cell, tuned: Mapping[str, Any] | None = None) -> LLM:
    """The engine of a cell, over the model that all share; `tuned` are the options of `LLM` in the cell of the profile."""
    named = {"drafter": cell.drafter, "num_speculative_tokens": cell.num_speculative_tokens}
    draft = tuned if tuned is not None and cell.drafter == PROFILE else named
    return LLM(model, verifier=cell.verifier, batch_size=cell.mode.batch_size, prefix_cache=False, **draft)


@dataclass
class _Station:
    """A cell, ready to run."""

    index: int
    cell: Cell
    llm: LLM
    watch: Watch


class Runner:
    """Runs what a result still lacks.

    Args:
        model: the target.
        prompts: what is asked, in the order of `result.prompts`.
        result: where measurements go; what it has already is not measured again.
        save: called now and then, so that a stopped benchmark can go on.
        on_run: called after each run, and for each that is left out.
        make: builds a cell's engine.
    """

    def __init__(
        self,
        model: LoadedModel,
        prompts: Sequence[BenchPrompt],
        result: BenchResult,
        *,
        save: Callable[[], None] = lambda: None,
        on_run: Callable[[], None] = lambda: None,
        make: MakeLLM = make_llm,
    ) -> None:
        self.model, self.prompts, self.result = model, prompts, result
        self._save, self.on_run, self._make = save, on_run, make
        self._done = {run.key for run in result.runs}
        self._failed = {run.cell for run in result.runs for answer in run.answers if answer.fault}
        self._baselines: dict[tuple[Mode, int], Run] = {}
        for run in result.runs:
            self._keep_baseline(run)
        self._saved_s = time.perf_counter()

    @property
    def num_left(self) -> int:
        """Runs to come; fewer where a cell fails."""
        sizes = {mode: len(in_groups(self.prompts, mode.batch_size)) for mode in self._modes}
        total = self.result.settings["repeats"] * sum(sizes[cell.mode] for cell in self.result.cells)
        return total - len(self._done)

    def run(self) -> None:
        """Until nothing is left."""
        for repeat in range(self.result.settings["repeats"]):
            for mode in self._modes:
                self._run_mode(mode, repeat)
        self.result.is_complete = True
        self._save()

    @property
    def _modes(self) -> list[Mode]:
        return list(dict.fromkeys(cell.mode for cell in self.result.cells))

    def _run_mode(self, mode: Mode, repeat: int) -> None:
        groups = in_groups(self.prompts, mode.batch_size)
        cells = [index for index, cell in enumerate(self.result.cells) if cell.mode == mode]
        left = [(c, g) for g in range(len(groups)) for c in cells if (c, repeat, g) not in self._done]
        if not left:
            return
        stations = self._stations({cell for cell, _ in left})
        for number, group in enumerate(groups):
            # The baseline's first answers are what the others are compared with; later each goes first in turn.
            turn = (number + repeat) % len(cells) if repeat else 0
            for index in [*cells[turn:], *cells[:turn]]:
                if (index, repeat, number) in self._done:
                    continue
                if index in stations and index not in self._failed:
                    self._measure(stations[index], repeat, number, group)
                self.on_run()
        self._save()

    def _stations(self, wanted: set[int]) -> dict[int, _Station]:
        """Engines that know nothing yet, warmed up. What cannot be built is refused, with the reason."""
        stations: dict[int, _Station] = {}
        for index in sorted(wanted - self._failed - self.result.refused.keys()):
            cell = self.result.cells[index]
            try:
                llm = self._make(self.model, cell)
            except ConfigError as error:
                if cell.verifier == MATCH:
                    raise
                self.result.refused[index] = str(error)
                continue
            self.result.methods.setdefault(cell.label, method_facts(llm))
            prompt = list(self.prompts[0].token_ids[:_WARM_UP_PROMPT])
            llm.generate([prompt], SamplingParams(max_tokens=_WARM_UP_TOKENS, ignore_eos=True))
            stations[index] = _Station(index, cell, llm, watch(llm))
        return stations

    def _measure(self, station: _Station, repeat: int, number: int, group: Sequence[int]) -> None:
        """One run, its comparison, and the books."""
        baseline = self._baseline(station.cell.mode, number)
        params, prompts = self._params(station.cell), [self.prompts[index] for index in group]
        drafting = [self._drafting(station.cell, prompt, place, baseline) for place, prompt in enumerate(prompts)]
        station.watch.restart()
        results = station.llm.generate([list(p.token_ids) for p in prompts], params, drafting=drafting)
        times = station.watch.times
        answers = [
            self._answer(station, index, result, None if baseline is None else baseline.answers[place])
            for place, (index, result) in enumerate(zip(group, results, strict=True))
        ]
        run = Run(
            station.index,
            repeat,
            number,
            times.prefill_s,
            times.decode_s,
            times.draft_s,
            times.target_s,
            times.decode_tokens,
            times.num_passes,
            times.num_nodes,
            answers,
            station.watch.bins,
        )
        self.result.runs.append(run)
        self._done.add(run.key)
        self._keep_baseline(run)
        if any(answer.fault for answer in answers):
            self._failed.add(station.index)
        if time.perf_counter() - self._saved_s > _SAVE_EVERY_S:
            self._save()
            self._saved_s = time.perf_counter()

    def _params(self, cell: Cell) -> SamplingParams:
        settings = self.result.settings
        return SamplingParams(
            max_tokens=settings["max_tokens"],
            temperature=cell.mode.temperature,
            seed=settings["seed"],
            ignore_eos=settings["ignore_eos"],
        )

    def _baseline(self, mode: Mode, group: int) -> Run | None:
        """The mode's plain run that the others are compared with; None where it is being made."""
        return self._baselines.get((mode, group))

    def _keep_baseline(self, run: Run) -> None:
        cell = self.result.cells[run.cell]
        if cell.is_baseline and run.repeat == 0:
            self._baselines[cell.mode, run.group] = run

    def _drafting(self, cell: Cell, prompt: BenchPrompt, place: int, baseline: Run | None) -> DraftingParams:
        """What a drafter may copy from: the plain answer itself where guesses are synthetic."""
        if cell.drafter.startswith(SYNTHETIC) and baseline is not None:
            return DraftingParams(reference=baseline.answers[place].token_ids)
        return DraftingParams(reference=prompt.reference)

    def _answer(self, station: _Station, prompt: int, result: Result, reference: Answer | None) -> Answer:
        stats = result.stats
        answer = Answer(
            prompt,
            ids_sha256(result.token_ids),
            stats.new_tokens,
            result.finish_reason,
            stats.num_steps,
            stats.drafted_tokens,
            stats.accepted_tokens,
            list(stats.drafted_at_depth),
            list(stats.accepted_at_depth),
        )
        is_same = reference is not None and answer.sha256 == reference.sha256
        if not is_same:
            answer.token_ids = list(result.token_ids)
        if reference is not None and not is_same and station.cell.promise == "tokens":
            found = self._differences(station, result, reference)
            answer.near_ties = [str(difference) for difference in found if difference.is_near_tie]
            answer.fault = next((str(difference) for difference in found if not difference.is_near_tie), None)
        return answer

    def _differences(self, station: _Station, result: Result, reference: Answer) -> list[Difference]:
        plain = LLM(self.model, "none", batch_size=1, prefix_cache=False)
        expected = replace(result, token_ids=reference.token_ids or [])
        return all_differences(plain, expected, result, self._params(station.cell))
