"""Plain and speculative decoding of the same prompts, one after the other, and whether the tokens are the same."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from foreword.bench.fidelity import LOGIT_TOLERANCE, Difference, explain_difference
from foreword.engine.llm import LLM
from foreword.engine.result import Result
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.sampling.sampler import Sampler

_WARM_UP_TOKENS = 8
# A prompt is asked more than once: a drafter that remembered its answer would copy it, which is no merit.
_BY_ITSELF = DraftingParams(remember=False)


@dataclass
class Case:
    """One prompt with one way of drawing tokens, and its runs."""

    name: str  # "chat"
    mode: str  # "greedy"
    prompt_ids: list[int]
    params: SamplingParams
    plain: list[Result] = field(default_factory=list)
    ahead: list[Result] = field(default_factory=list)

    @property
    def speedup(self) -> float | None:
        """Median tokens per second over plain decoding's; None where an answer is too short to time."""
        plain, ahead = tok_per_s(self.plain), tok_per_s(self.ahead)
        return ahead / plain if plain and ahead else None


def tok_per_s(results: Sequence[Result]) -> float | None:
    """Median over runs of the decoding speed."""
    speeds = [r.stats.decode_tok_per_s for r in results if r.stats.decode_tok_per_s is not None]
    return median(speeds) if speeds else None


@dataclass(frozen=True)
class Steps:
    """What a step of some runs brought and took, on average; 0 where there was none."""

    tokens: float
    seconds: float


def steps_of(results: Sequence[Result]) -> Steps:
    """Over all runs, prompts left out."""
    num_steps = max(1, sum(run.stats.num_steps for run in results))
    num_tokens = sum(max(0, run.stats.new_tokens - 1) for run in results)
    return Steps(num_tokens / num_steps, sum(run.stats.decode_s for run in results) / num_steps)


def run_cases(
    plain: LLM, ahead: LLM, cases: Sequence[Case], *, rounds: int, budget_s: float, on_answer: Callable[[Case], None]
) -> None:
    """Run all cases plainly and ahead, interleaved, because machines are noisy.

    After the first round, in which `on_answer` is told of each case, another one is run only while it is likely to end
    within `budget_s` seconds.
    """
    for llm in (plain, ahead):
        llm.generate([cases[0].prompt_ids], SamplingParams(max_tokens=_WARM_UP_TOKENS, ignore_eos=True))
    start_s = time.perf_counter()
    for number in range(rounds):
        for case in cases:
            order = ((plain, case.plain), (ahead, case.ahead))
            for llm, results in order if number % 2 == 0 else order[::-1]:
                results += llm.generate([case.prompt_ids], case.params, drafting=_BY_ITSELF)
            if number == 0:
                on_answer(case)
        elapsed_s = time.perf_counter() - start_s
        if elapsed_s * (number + 2) / (number + 1) > budget_s:
            break


def differences(llm: LLM, case: Case) -> list[Difference]:
    """Where runs ahead say something else than the first plain run, with the cause; each place once."""
    reference = case.plain[0].token_ids
    sampler = Sampler(case.params.warp, case.plain[0].seed)
    tolerance = LOGIT_TOLERANCE[llm.model.choice.dtype]
    found: list[Difference] = []
    for result in [*case.ahead, *case.plain[1:]]:
        difference = explain_difference(
            llm.model.decoder, case.prompt_ids, reference, result.token_ids, sampler, tolerance
        )
        if difference is not None and difference not in found:
            found.append(difference)
    return found
