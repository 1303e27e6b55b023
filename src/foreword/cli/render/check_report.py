"""What `foreword check` found: a table and sentences for people, one JSON object for programs."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from foreword.bench.check_run import Prompt, Run, promise_of
from foreword.bench.fidelity import LOGIT_TOLERANCE
from foreword.cli.output import console
from foreword.cli.render.difference_text import explain, token_text

if TYPE_CHECKING:
    from foreword.bench.fidelity import Difference
    from foreword.engine.llm import LLM

_PROMISES = {
    "tokens": "exactly the tokens of plain decoding",
    "law": "the distribution of plain decoding; its tokens only where they are greedy",
    "nothing": "neither tokens nor distribution: it is lossy, so equality is not guaranteed and no difference is an error",
}


class Report:
    """All runs of a check, with what may be asked of them."""

    def __init__(self, llm: "LLM", prompts: Sequence[Prompt], runs: Sequence[Run], left_out: str | None) -> None:
        self.llm, self.prompts, self.runs = llm, prompts, runs
        self.left_out = left_out  # why a mode was not compared
        self.promise = promise_of(llm.engine.parts.verifier)

    @property
    def num_faults(self) -> int:
        """Differences that must not be there."""
        return sum(run.num_faults for run in self.runs if self._must_equal(run))

    @property
    def drafted(self) -> list[Run]:
        """The runs with the drafter."""
        return [run for run in self.runs if run.drafter != "none"]

    def print(self) -> None:
        """For people, on stdout."""
        from rich.table import Table

        table = Table(
            "sampling", "drafter", "batch", "answers", "same", "near-ties", "other", "tokens", "tokens per step"
        )
        for run in self.runs:
            other = run.num_faults if self._must_equal(run) else f"{run.num_faults} (lossy)"
            counts = (len(run.results), run.num_same, run.num_near_ties, other, _num_tokens(run))
            step = _tokens_per_step(run)
            table.add_row(
                run.mode.name,
                run.drafter,
                str(run.batch_size),
                *map(str, counts),
                "-" if step is None else f"{step:.2f}",
            )
        console().print(table)
        if self.promise != "nothing":
            previous = None
            for run, prompt, difference in self._differences():
                where = f"{prompt.id}, {run.mode.name}, drafter {run.drafter}, batch {run.batch_size}"
                what = "next difference" if where == previous else "first difference"
                print(f"{where}: {explain(self.llm, difference, what)}")
                previous = where
        print(f"verifier {self.llm.engine.parts.verifier.name} promises {_PROMISES[self.promise]}")
        for note in self._notes():
            print(note)
        print(self._verdict())

    def as_json(self) -> dict[str, Any]:
        """For programs; `same_tokens` is null where equality is not promised."""
        return {
            "same_tokens": None if self.promise == "nothing" else self.num_faults == 0,
            "promise": self.promise,
            "answers": sum(len(run.results) for run in self.drafted),
            "differing_answers": sum(len(run.results) - run.num_same for run in self.drafted),
            "near_ties": sum(run.num_near_ties for run in self.runs),
            "faults": self.num_faults,
            "left_out": self.left_out,
            "runs": [_run_json(run) for run in self.runs],
            "differences": [self._difference_json(*found) for found in self._differences()],
        }

    def _must_equal(self, run: Run) -> bool:
        return self.promise != "nothing" or run.drafter == "none"

    def _differences(self) -> "Iterator[tuple[Run, Prompt, Difference]]":
        for run in self.runs:
            for prompt, found in zip(self.prompts, run.differences, strict=True):
                for difference in found:
                    yield run, prompt, difference

    def _notes(self) -> Iterator[str]:
        choice = self.llm.model.choice
        if self.promise != "nothing":
            yield (
                f"runtime {choice.name} rounds identically at any width: equality is exact, and no difference is accepted"
                if LOGIT_TOLERANCE[choice.dtype] == 0
                else f"runtime {choice.name} rounds differently by the width of a pass: a near-tie is two scores closer than that, scored "
                f"again token by token; after one, the comparison continues with plain decoding from there"
            )
        if self.left_out is not None:
            yield self.left_out
        if not sum(result.stats.drafted_tokens for run in self.drafted for result in run.results):
            yield (
                "nothing was drafted, so this proves little: try other --prompts, more --max-tokens, or another --drafter; ngram "
                "drafts whether that is faster or not"
            )

    def _verdict(self) -> str:
        answers = sum(len(run.results) for run in self.drafted)
        if self.promise == "nothing":
            differing = sum(len(run.results) - run.num_same for run in self.drafted)
            return f"differing answers: {differing} of {answers} ({differing / answers:.0%})"
        if self.num_faults:
            plural = "s that are not near-ties" if self.num_faults > 1 else " that is not a near-tie"
            return f"same tokens: NO, {self.num_faults} difference{plural}"
        tokens = sum(_num_tokens(run) for run in self.drafted)
        ties = sum(run.num_near_ties for run in self.runs)
        but = f", but for {ties} near-tie{'s' if ties > 1 else ''}" if ties else ""
        stats = [result.stats for run in self.drafted for result in run.results]
        drafted, accepted = (sum(getattr(s, name) for s in stats) for name in ("drafted_tokens", "accepted_tokens"))
        counts = f"{drafted} drafted, {accepted} of them accepted" if drafted else "none drafted"
        return f"same tokens: yes{but} ({answers} answers, {tokens} tokens; {counts})"

    def _difference_json(self, run: Run, prompt: Prompt, difference: "Difference") -> dict[str, Any]:
        return {
            "id": prompt.id,
            "mode": run.mode.name,
            "drafter": run.drafter,
            "batch_size": run.batch_size,
            "index": difference.index,
            "plain_token": difference.plain_token,
            "other_token": difference.other_token,
            "plain_text": token_text(self.llm, difference.plain_token),
            "other_text": token_text(self.llm, difference.other_token),
            "gap": difference.gap if math.isfinite(difference.gap) else None,
            "tolerance": difference.tolerance,
            "is_near_tie": difference.is_near_tie,
        }


def _run_json(run: Run) -> dict[str, Any]:
    stats = [result.stats for result in run.results]
    return {
        "mode": run.mode.name,
        "temperature": run.mode.params.temperature,
        "drafter": run.drafter,
        "batch_size": run.batch_size,
        "answers": len(run.results),
        "same": run.num_same,
        "near_ties": run.num_near_ties,
        "other_differences": run.num_faults,
        "new_tokens": _num_tokens(run),
        "drafted_tokens": sum(s.drafted_tokens for s in stats),
        "accepted_tokens": sum(s.accepted_tokens for s in stats),
        "tokens_per_step": _tokens_per_step(run),
    }


def _num_tokens(run: Run) -> int:
    return sum(result.stats.new_tokens for result in run.results)


def _tokens_per_step(run: Run) -> float | None:
    """Over all answers; the first token of each is prefill's."""
    steps = sum(result.stats.num_steps for result in run.results)
    return sum(max(r.stats.new_tokens - 1, 0) for r in run.results) / steps if steps else None
