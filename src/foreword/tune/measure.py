"""Candidates side by side: the same prompts through one loaded target, plain decoding and all candidates in turn.

Every answer is held against plain decoding's: a candidate that says anything else, but for proven near-ties, is out
whatever its speed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from foreword.bench.fidelity import LOGIT_TOLERANCE, explain_difference
from foreword.bench.intervals import Ratio, ratio_of
from foreword.draft.draft_config import DraftConfig
from foreword.engine.llm import LLM
from foreword.engine.result import Result
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.sampling.sampler import Sampler
from foreword.target.load_model import LoadedModel
from foreword.tune.candidates import PLAIN, Candidate

_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class TunePrompt:
    """Ready to run."""

    token_ids: list[int]
    drafting: DraftingParams = DraftingParams()  # such as a reference to draft from


@dataclass(eq=False)
class Arm:
    """A candidate and what was measured of it."""

    candidate: Candidate
    llm: LLM
    pairs: list[tuple[float, float]] = field(default_factory=list)  # seconds plainly, and with it, of the same tokens
    results: list[Result] = field(default_factory=list)
    num_near_ties: int = 0
    fault: str | None = None  # the first difference that nothing explains

    @property
    def num_nodes(self) -> int:
        """Most drafted nodes per step."""
        return self.candidate.num_nodes or self.llm.config.num_speculative_tokens or 0

    @property
    def speed(self) -> Ratio:
        """Times as fast as plain decoding; 0 before anything was measured."""
        return ratio_of(self.pairs) if self.pairs else Ratio(0.0)

    @property
    def tokens_per_step(self) -> float | None:
        """Over all answers; None without a step."""
        steps = sum(r.stats.num_steps for r in self.results)
        return sum(r.stats.new_tokens - 1 for r in self.results) / steps if steps else None

    def begin_anew(self) -> None:
        """Forget the times: the best of many was chosen by them, so they flatter it."""
        self.pairs.clear()


def remembers(config: DraftConfig) -> bool:
    """Whether a drafter carries over from one request to the next what it has seen."""
    return any(member.type.remembers(member.options) for member in config.members)


class Bench:
    """Measures arms over one target.

    Args:
        model: in memory; all arms share it.
        params: of every answer; with a seed.
    """

    def __init__(self, model: LoadedModel, params: SamplingParams) -> None:
        self.model, self.params = model, params.with_seed()
        self.plain = LLM(model, PLAIN, batch_size=1, prefix_cache=False)
        self.plain_results: list[Result] = []
        self._llms: dict[tuple[object, str], LLM] = {}
        self._turn = 0

    def arm(self, candidate: Candidate) -> Arm:
        """Build what drafts; candidates that differ in the number of nodes alone share it. Raises `ForewordError`."""
        if remembers(candidate.config):
            return Arm(candidate, self._fresh(candidate))
        key = (candidate.config, candidate.policy)
        if key not in self._llms:
            self._llms[key] = self._fresh(candidate)
        return Arm(candidate, self._llms[key])

    def begin_round(self, arms: Sequence[Arm]) -> None:
        """Let drafters that remember earlier answers forget: they have seen the answers that come now, which is no merit."""
        for arm in arms:
            if remembers(arm.candidate.config):
                arm.llm = self._fresh(arm.candidate)

    def _fresh(self, candidate: Candidate) -> LLM:
        return LLM(self.model, candidate.config, policy=candidate.policy, batch_size=1, prefix_cache=False)

    def warm_up(self, arms: Sequence[Arm], prompt: TunePrompt) -> None:
        """A few tokens of each, so that nobody pays for the first touch of memory."""
        params = replace(self.params, max_tokens=_WARM_UP_TOKENS, ignore_eos=True)
        for llm in [self.plain, *{id(arm.llm): arm.llm for arm in arms}.values()]:
            llm.generate([prompt.token_ids], params)

    def run(
        self,
        arms: Sequence[Arm],
        prompt: TunePrompt,
        on_answer: Callable[[], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> bool:
        """One prompt through plain decoding and every arm, the order turning from prompt to prompt.

        Nothing is begun once `is_over`; what was answered until then is kept where it can be compared. Whether all was.
        """
        llms: list[Arm | None] = [None, *arms]
        first = self._turn % len(llms)
        self._turn += 1
        answers: dict[int, Result] = {}
        for arm in llms[first:] + llms[:first]:
            if is_over():
                break
            answers[id(arm)] = self._answer(arm, prompt)
            on_answer()
        plain = answers.get(id(None))
        if plain is not None:
            self.plain_results.append(plain)
            for arm in arms:
                if id(arm) in answers:
                    self._compare(arm, plain, answers[id(arm)])
        return len(answers) == len(llms)

    def _answer(self, arm: Arm | None, prompt: TunePrompt) -> Result:
        if arm is None:
            return self.plain.generate([prompt.token_ids], self.params)[0]
        drafting = prompt.drafting
        if arm.candidate.num_nodes is not None:
            drafting = replace(drafting, num_speculative_tokens=arm.candidate.num_nodes)
        return arm.llm.generate([prompt.token_ids], self.params, drafting=drafting)[0]

    def _compare(self, arm: Arm, plain: Result, own: Result) -> None:
        """Keep the times of an answer whose tokens are right."""
        arm.results.append(own)
        sampler = Sampler(self.params.warp, plain.seed)
        tolerance = LOGIT_TOLERANCE.get(self.model.choice.dtype, 0.0)
        difference = explain_difference(
            self.model.decoder, plain.prompt_token_ids, plain.token_ids, own.token_ids, sampler, tolerance
        )
        if difference is not None and not difference.is_near_tie:
            arm.fault = arm.fault or str(difference)
            return
        arm.num_near_ties += difference is not None
        tokens = plain.stats.new_tokens - 1
        if plain.stats.decode_tok_per_s and own.stats.decode_tok_per_s:  # else too short to time
            arm.pairs.append((tokens / plain.stats.decode_tok_per_s, tokens / own.stats.decode_tok_per_s))
