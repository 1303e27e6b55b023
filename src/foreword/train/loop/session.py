"""A whole training run: answers, features, training, and the folder that comes out.

OUT/config.json model.safetensors README.md curve.*    the drafter, the best so far
OUT/resume: checkpoint.pt draft_vocab.json times.json   to go on after a kill
DATA/answers DATA/features                             what it is trained on; several runs may share it
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from foreword.engine.llm import LLM
from foreword.errors import UnknownNameError
from foreword.files import write_whole
from foreword.train.data.answers import HELD_OUT, Answer, AnswerStore
from foreword.train.data.extract import extract_features
from foreword.train.data.features import FeatureStore
from foreword.train.data.self_distill import DistillOptions, Question, check_enough, opened, self_distill
from foreword.train.data.vocabulary import check_vocab_size
from foreword.train.loop.optimiser import kind_of
from foreword.train.loop.phase_times import Times
from foreword.train.loop.resume_state import Progress
from foreword.train.loop.settings import TrainSettings
from foreword.train.loop.training_loop import LoopOptions, Status, Trainer
from foreword.train.methods.method import Measures, TargetTables
from foreword.train.out.card import model_card
from foreword.train.out.curves import write_curves
from foreword.train.out.live_acceptance import verified_tokens_per_step

METHODS: dict[str, str] = {
    "eagle3": "foreword.train.methods.eagle3",
    "eagle": "foreword.train.methods.eagle",
    "medusa": "foreword.train.methods.medusa",
    "draft_model": "foreword.train.methods.draft_model",
    "medusa2": "foreword.train.methods.medusa2",
}
COUNTED: dict[str, str] = {"ngram_lm": "foreword.train.methods.ngram_lm"}  # no steps: one look at the answers
_LIVE_PROMPTS, _LIVE_TOKENS = 16, 128
_FEATURES_END = 0.7  # of the budget: features of further answers are left out then
_RESERVED, _MOST_RESERVED_S = 0.18, 45.0
_LITTLE = 0.2  # of the budget is little to train with


class Reporter(Protocol):
    """Where a run reports its progress."""

    def phase(self, text: str, most_s: float = math.inf, unit: str = "tokens") -> None:
        """Something new begins, with at most so many seconds for it."""
        ...

    def data(self, done: int, total: int) -> None:
        """How many of the phase's units there are, and will be."""
        ...

    def status(self, status: Status) -> None:
        """After a training step."""
        ...

    def best(self, measures: Measures, verified: Mapping[str, Any] | None) -> None:
        """A better drafter was saved."""
        ...


def target_tables(llm: LLM) -> TargetTables:
    """The target's embedding and head, as its files have them."""
    checkpoint = opened(llm)
    embedding = checkpoint.tensor("embed.weight")
    head = embedding if checkpoint.spec.tied_head else checkpoint.tensor("head.weight")
    return TargetTables(
        checkpoint.spec,
        embedding,
        head,
        checkpoint.eos_token_ids,
        checkpoint.fingerprint,
        checkpoint.source,
        checkpoint,
    )


def train(
    method: str,
    llm: LLM,
    questions: Sequence[Question],
    out: Path,
    settings: TrainSettings,
    reporter: Reporter,
    *,
    data: Path | None = None,
    licences: Mapping[str, str] | None = None,
    begun_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Train a drafter for the model of `llm` and leave it in `out`; resumes an earlier run.

    Args:
        method: which drafter, one of `METHODS` or `COUNTED`.
        llm: the target, without a drafter.
        questions: the prompts; some are held out.
        out: the drafter's folder.
        settings: see there.
        reporter: is told how it goes.
        data: where answers and features are kept (in `out` by default).
        licences: of the prompts by group, for the card.
        begun_s: when the time budget began, of `clock`; by default now.
        clock: seconds that pass.

    Raises:
        ConfigError: the settings do not fit the model or the questions, or the folders hold another run.
    """
    if method not in (known := METHODS | COUNTED):
        raise UnknownNameError("method", method, known)
    check_enough(question.id for question in questions)
    times = Times(out / "resume" / "times.json", begun_s, clock)
    if method in COUNTED:
        count = import_module(COUNTED[method]).count
        return count(llm, questions, out, settings, reporter, data=data, licences=licences, times=times)
    module, data, resume = import_module(METHODS[method]), data or out / "data", out / "resume"
    target = target_tables(llm)
    check_vocab_size(settings.draft_vocab_size, target)
    if hasattr(module, "check"):  # methods that not every model and installation suits
        module.check(target, settings)
    taps = module.taps_for(target.spec)
    answers = collect_answers(llm, questions, data, settings, reporter, times, settings.data_share)
    store = FeatureStore(data, taps, target.spec.hidden_size)
    store.begin({"model_fingerprint": opened(llm).fingerprint, "dtype": llm.model.choice.dtype})
    with times.counting("features"):
        left_s = _FEATURES_END * settings.time_budget_s - times.spent_s
        reporter.phase("reading the answers again for features", left_s)
        extract_features(llm.model.decoder, answers, store, reporter.data, clock() + left_s, clock)
    answers = answers[: len(store.entries)]
    drafter = module.make(target, store, settings, resume)
    times.count_rest()
    budget_s = max(settings.time_budget_s - times.total_s, 0.0)
    own_facts = module.run_facts(settings)
    facts = _facts(method, target, settings) | own_facts.run | {"optimiser": kind_of(drafter.inner)}

    def keep(measures: Measures, progress: Progress) -> None:
        told = {
            **facts,
            **own_facts.told,
            "batch_tokens": settings.batch_tokens,
            "learning_rate": settings.learning_rate,
            "steps": progress.step,
            "training_s": round(progress.elapsed_s, 1),
            "answer_tokens_seen": progress.num_tokens,
            "accept_by_depth": [round(rate, 4) for rate in measures.accept_by_depth],
        }
        drafter.save(out, told)
        verified = verify_and_describe(
            method, llm, out, settings, licences or {}, questions, answers, measures, told, times
        )
        if verified is not None:
            progress.curve[-1]["tokens_per_step"] = round(verified["tokens_per_step"], 4)
        reporter.best(measures, verified)

    little = (
        f": only {budget_s:.0f} of {settings.time_budget_s:.0f} s are left for it, a longer --time-budget trains better"
    )
    reporter.phase(f"training {method}{little if budget_s < _LITTLE * settings.time_budget_s else ''}")
    options = _loop_options(settings, budget_s)
    return Trainer(
        drafter,
        store,
        options,
        resume,
        facts,
        reporter.status,
        keep,
        lambda progress: write_curves(out, progress.curve),
        clock,
    ).run()


def verify_and_describe(
    method: str,
    llm: LLM,
    out: Path,
    settings: TrainSettings,
    licences: Mapping[str, str],
    questions: Sequence[Question],
    answers: Sequence[Answer],
    measures: Measures,
    told: Mapping[str, Any],
    times: Times,
) -> dict[str, Any] | None:
    """What the real verifier makes of the drafter that was just saved in `out`; its model card is written with that."""
    verified = verified_tokens_per_step(
        llm.model, method, out, live_prompts(answers), live_tokens(settings), reserve_s(settings) / 3, times.clock
    )
    card = model_card(
        method=method,
        model=opened(llm).source,
        licences=licences,
        questions=questions,
        answers=answers,
        measures=measures,
        facts={**told, **{f"{name}_s": round(value, 1) for name, value in times.values.items()}},
        verified=verified,
    )
    write_whole(out / "README.md", card)
    return verified


def collect_answers(
    llm: LLM,
    questions: Sequence[Question],
    data: Path,
    settings: TrainSettings,
    reporter: Reporter,
    times: Times,
    share: float,
) -> list[Answer]:
    """The target's answers: as many as were asked for, or as fit in their share of the time budget."""
    options = DistillOptions(num_tokens=settings.num_tokens, max_new_tokens=settings.max_new_tokens, seed=settings.seed)
    left_s = share * settings.time_budget_s - times.values.get("answers", 0.0)
    reporter.phase("the model answers the prompts", left_s)
    with times.counting("answers"):
        return self_distill(
            llm, questions, AnswerStore(data), options, reporter.data, times.clock() + left_s, times.clock
        )


def _facts(method: str, target: TargetTables, settings: TrainSettings) -> dict[str, Any]:
    """What identifies a run: another value is another run. All else may change when it is resumed."""
    return {
        "method": method,
        "target": target.source,
        "target_fingerprint": target.fingerprint,
        "draft_vocab_size": min(settings.draft_vocab_size, target.spec.vocab_size),
        "seed": settings.seed,
    }


def _loop_options(settings: TrainSettings, budget_s: float) -> LoopOptions:
    return LoopOptions(
        time_budget_s=budget_s,
        reserve_s=min(reserve_s(settings), budget_s / 2),
        max_steps=settings.max_steps,
        batch_tokens=settings.batch_tokens,
        max_len=settings.max_len,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        eval_every_s=settings.eval_every_s,
        dtype=settings.dtype,
    )


def reserve_s(settings: TrainSettings) -> float:
    """Part of the budget that is kept for the last measurement, and for a look at the speed afterwards."""
    return min(_RESERVED * settings.time_budget_s, _MOST_RESERVED_S)


def live_tokens(settings: TrainSettings) -> int:
    """Longest answer in measurements with the real verifier."""
    return min(_LIVE_TOKENS, settings.max_new_tokens)


def live_prompts(answers: Sequence[Answer]) -> list[list[int]]:
    """Held-out prompts spread over the data, each once."""
    prompts = list({a.id: list(a.token_ids[: a.prompt_len]) for a in answers if a.split == HELD_OUT}.values())
    return prompts[:: max(1, len(prompts) // _LIVE_PROMPTS)][:_LIVE_PROMPTS]
