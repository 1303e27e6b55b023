"""Successive halving in three heats: every drafter as it comes, other settings of the best, then the best against each other.

    heat 1   all candidates, a few prompts each             0.4 of the time
    heat 2   the best two, and variants of their settings   0.3
    heat 3   the best three, timed anew                      0.3

The last heat's times alone are reported for those in it: whoever won a heat did so partly by luck. A heat may take longer
than its share to give each its least prompts; no answer is begun that would end after the whole budget.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foreword.errors import ForewordError
from foreword.tune.candidates import WITH_TABLE, Candidate, variants
from foreword.tune.draft_model_fit import PairFacts, look_at_pair
from foreword.tune.measure import Arm, Bench, TunePrompt

_SHARES = (0.4, 0.3, 0.3)
_BRED, _FINALISTS = 2, 3
_LEAST_PROMPTS = (2, 2, 4)  # of each heat, whatever the time
_MOST_ROUNDS = 3  # through all prompts, in the last heat
_HOPELESS = 0.7  # speed at which other settings are not tried
_LEAST_GAIN = 1.02  # what is worth the trouble
LEAST_PAIRS = 6  # drawing anew from fewer makes intervals that are too narrow

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What was found."""

    bench: Bench
    arms: list[Arm]  # all that were measured, the fastest first
    refused: dict[str, str] = field(default_factory=dict)  # candidates that could not be used, and why
    pairs: dict[str, PairFacts] = field(default_factory=dict)  # by candidate's name
    seconds: float = 0.0
    is_cut: bool = False  # the time was over before the best were timed against each other

    @property
    def winner(self) -> Arm | None:
        """The fastest of those that surely pay; None where plain decoding is the thing to do, or nobody knows."""
        return None if self.is_cut else next((arm for arm in self.arms if pays(arm)), None)


def pays(arm: Arm) -> bool:
    """Whether it is faster than plain decoding by more than chance and more than nothing, as far as can be told."""
    return arm.fault is None and _seems_faster(arm) and doubt(arm) is None


def doubt(arm: Arm) -> str | None:
    """Why its times do not show whether it is faster; None where they do."""
    num_pairs, speed, per_step = len(arm.pairs), arm.speed, arm.tokens_per_step or 1.0
    if 0 < num_pairs < LEAST_PAIRS and speed.high >= _LEAST_GAIN:
        return f"{num_pairs} {'answer was' if num_pairs == 1 else 'answers were'} timed and {LEAST_PAIRS} are needed"
    # A pass with drafts takes no less time than one without: beyond that, something else was at work on the machine.
    if _seems_faster(arm) and speed.value > per_step:
        return f"drafting cannot be what made it so fast, with {per_step:.2f} tokens per step: the times are noise"
    return None


def _seems_faster(arm: Arm) -> bool:
    return arm.speed.low > 1.0 and arm.speed.value >= _LEAST_GAIN


class Search:
    """Runs the heats.

    Args:
        bench: with the target.
        prompts: at least one.
        budget_s: for everything. No answer is begun that would not end within it; the first one alone may take longer.
        say: told what is happening.
        on_answer: called after every answer.
        clock: seconds that pass.
    """

    def __init__(
        self,
        bench: Bench,
        prompts: Sequence[TunePrompt],
        budget_s: float,
        say: Say,
        on_answer: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.bench, self.prompts, self.budget_s = bench, prompts, budget_s
        self._say, self._on_answer, self._clock = say, on_answer, clock
        self._end_s = math.inf
        self._begun_s = 0.0  # the answer that is under way
        self._longest_s = 0.0  # that an answer took
        self.outcome = Outcome(bench, [])

    def run(self, candidates: Sequence[Candidate]) -> Outcome:
        """Measure, choose, measure again."""
        start_s = self._clock()
        self._end_s = start_s + self.budget_s
        deadlines = [start_s + self.budget_s * sum(_SHARES[: i + 1]) for i in range(len(_SHARES))]
        self._look_at_pairs(candidates)
        first = self._heat("every drafter as it comes", self._build(candidates), 0, deadlines[0], rounds=1)
        self._judge_pairs(first)
        bred = [arm for arm in _ranked(first)[:_BRED] if arm.speed.value >= _HOPELESS]
        others = self._build([new for arm in bred for new in self._variants(arm)])
        second = self._heat("other settings of the best", [*bred, *others] if others else [], 1, deadlines[1], rounds=1)
        finalists = _ranked([*first, *(arm for arm in second if arm not in first)])[:_FINALISTS]
        self.outcome.is_cut = bool(finalists) and self._is_over()
        if not self.outcome.is_cut:
            for arm in finalists:
                arm.begin_anew()
            self._heat("the best against each other", finalists, 2, deadlines[2], rounds=_MOST_ROUNDS)
        self.outcome.arms = [*_ranked(finalists), *_ranked([a for a in self.outcome.arms if a not in finalists])]
        self.outcome.seconds = self._clock() - start_s
        return self.outcome

    def _is_over(self) -> bool:
        """Whether an answer that is begun now would not end in time, if it took as long as the longest so far."""
        self._begun_s = self._clock()
        return self._begun_s >= self._end_s or self._begun_s + self._longest_s > self._end_s

    def _answered(self) -> None:
        self._longest_s = max(self._longest_s, self._clock() - self._begun_s)
        self._on_answer()

    def _build(self, candidates: Sequence[Candidate]) -> list[Arm]:
        """Those that can be built; the others are refused, with the reason."""
        arms = []
        for candidate in candidates:
            try:
                arms.append(self.bench.arm(candidate))
            except ForewordError as error:
                self.outcome.refused[candidate.label] = str(error)
                self._say(f"{candidate.label} is left out: {error}")
        self.outcome.arms += arms
        return arms

    def _heat(self, title: str, arms: list[Arm], number: int, deadline_s: float, *, rounds: int) -> list[Arm]:
        """Prompts in turn until the time is over, or each has had its rounds."""
        if not arms or self._is_over():
            return []
        self._say(f"{title}: {', '.join(arm.candidate.label for arm in arms)}")
        self.bench.warm_up(arms, self.prompts[0])
        least = _LEAST_PROMPTS[number]
        most = max(rounds * len(self.prompts), LEAST_PAIRS if rounds > 1 else least)
        for index in range(most):
            if index % len(self.prompts) == 0:
                self.bench.begin_round(arms)
            begun_s = self._clock()
            running = [arm for arm in arms if arm.fault is None]
            prompt = self.prompts[index % len(self.prompts)]
            if not self.bench.run(running, prompt, self._answered, self._is_over):
                break
            ended_s = self._clock()
            if index + 1 >= least and 2 * ended_s - begun_s > deadline_s:
                break
        for arm in _ranked(arms):
            speed = f"{arm.speed.value:.2f} x" if arm.pairs else "not timed"
            self._say(f"  {arm.candidate.label}: {arm.fault or speed}")
        return arms

    def _variants(self, arm: Arm) -> list[Candidate]:
        facts = self.outcome.pairs.get(arm.candidate.name)
        best = None if facts is None else facts.best
        found = variants(arm.candidate, arm.num_nodes, None if best is None else best[0])
        has_table = any(other.candidate.name == WITH_TABLE for other in self.outcome.arms)
        has_auto = any(other.candidate.config.method == "auto" for other in self.outcome.arms) and not has_table
        # `auto` is suffix under the adaptive policy, where there is no table: not twice.
        return [v for v in found if not (has_auto and (v.config.method, v.policy) == ("suffix", "adaptive"))]

    def _look_at_pairs(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            if candidate.config.method == "draft_model" and candidate.config.path is not None:
                try:
                    facts = look_at_pair(self.bench.model, candidate.config.path)
                except ForewordError:
                    continue  # building the arm fails with the same tokens, and says them
                self.outcome.pairs[candidate.name] = facts

    def _judge_pairs(self, arms: Sequence[Arm]) -> None:
        """Acceptance of draft models, from the chains of the first heat."""
        for arm in arms:
            facts = self.outcome.pairs.get(arm.candidate.name)
            if facts is not None:
                stats = [result.stats for result in arm.results]
                self.outcome.pairs[arm.candidate.name] = facts.with_alpha(stats, arm.num_nodes)


def _ranked(arms: Sequence[Arm]) -> list[Arm]:
    """The fastest first; those that say other tokens last."""
    return sorted(arms, key=lambda arm: (arm.fault is not None, -arm.speed.value))


__all__ = ["LEAST_PAIRS", "Outcome", "Search", "doubt", "pays"]
