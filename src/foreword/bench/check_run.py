"""Answers with a drafter against answers without one: which differ, where, and whether rounding explains it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from foreword.bench.differences import all_differences
from foreword.bench.fidelity import Difference, first_difference
from foreword.engine.llm import LLM
from foreword.engine.result import Result
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.verify.base import Verifier

# What a rule promises: the very tokens, only their probabilities (greedy ones are then certain), or neither.
Promise = Literal["tokens", "law", "nothing"]


@dataclass(frozen=True)
class Prompt:
    """One prompt and what it is called."""

    id: str | int
    token_ids: list[int]
    drafting: DraftingParams | None = None  # such as a reference to draft from


@dataclass(frozen=True)
class Mode:
    """One way of drawing tokens."""

    name: str  # "greedy"
    params: SamplingParams


@dataclass
class Run:
    """All prompts in one mode at one batch size, compared with plain decoding one by one."""

    mode: Mode
    drafter: str  # "none" where plain decoding in a batch is compared with itself
    batch_size: int
    results: list[Result]
    differences: list[list[Difference]] = field(default_factory=list)  # of each answer; the last one may be a fault

    @property
    def num_same(self) -> int:
        """Answers without a difference."""
        return sum(not found for found in self.differences)

    @property
    def num_near_ties(self) -> int:
        """Differences that rounding explains."""
        return sum(d.is_near_tie for found in self.differences for d in found)

    @property
    def num_faults(self) -> int:
        """Differences that nothing explains."""
        return sum(not d.is_near_tie for found in self.differences for d in found)


def promise_of(rule: Verifier) -> Promise:
    """What may be asked of a rule's tokens."""
    if rule.name == "match":
        return "tokens"
    return "law" if rule.is_lossless else "nothing"


def num_answers(num_prompts: int, num_modes: int, batch_size: int) -> int:
    """How many answers `run_modes` makes."""
    return num_prompts * num_modes * (4 if batch_size > 1 else 2)


def run_modes(
    ahead: LLM, prompts: Sequence[Prompt], modes: Sequence[Mode], batch_size: int, on_answer: Callable[[], None]
) -> Iterator[Run]:
    """Run and compare: one by one, and in batches where `batch_size` is above 1.

    `ahead` must have room for that batch. `on_answer` is called after each answer.
    """
    plain = LLM(ahead.model, "none", batch_size=batch_size, prefix_cache=False)
    promise = promise_of(ahead.engine.parts.verifier)
    for mode in modes:
        reference = _answers(plain, prompts, mode.params, 1, on_answer)
        runs = [Run(mode, ahead.config.method, 1, _answers(ahead, prompts, mode.params, 1, on_answer))]
        if batch_size > 1:  # plain answers too: where rounding depends on the batch, it does so without a drafter
            for name, llm in (("none", plain), (ahead.config.method, ahead)):
                runs.append(Run(mode, name, batch_size, _answers(llm, prompts, mode.params, batch_size, on_answer)))
        for run in runs:
            is_proof = promise != "nothing" or run.drafter == "none"
            compare = all_differences if is_proof else _bare_difference
            run.differences = [compare(plain, a, b, mode.params) for a, b in zip(reference, run.results, strict=True)]
            yield run


def _bare_difference(plain: LLM, reference: Result, other: Result, params: SamplingParams) -> list[Difference]:
    """The first difference of a lossy rule's answer, which nothing has to explain."""
    index = first_difference(reference.token_ids, other.token_ids)
    if index is None:
        return []
    a, b = (ids[index] if index < len(ids) else None for ids in (reference.token_ids, other.token_ids))
    return [Difference(index, a, b, float("inf"), 0.0)]


def _answers(
    llm: LLM, prompts: Sequence[Prompt], params: SamplingParams, batch_size: int, on_answer: Callable[[], None]
) -> list[Result]:
    """In order; one after the other, or as many side by side as `llm` has room for."""
    results: list[Result] = []
    for group in [prompts] if batch_size > 1 else [[prompt] for prompt in prompts]:
        drafting = [prompt.drafting for prompt in group]
        for result in llm.iterate([prompt.token_ids for prompt in group], params, drafting=drafting):
            results.append(result)
            on_answer()
    return results
