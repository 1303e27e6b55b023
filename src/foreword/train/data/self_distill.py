"""Self-distillation: the target answers the prompts itself, and its own answers are what a drafter learns from."""

import hashlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from foreword.checkpoint.opened import Checkpoint
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams
from foreword.train.data.answers import HELD_OUT, TRAIN, Answer, AnswerStore, is_usable

_CHUNK_JOBS = 4096  # asked in one call: only at its end do places in the batch stay empty


@dataclass(frozen=True)
class Question:
    """A prompt to train on."""

    id: str
    category: str | None
    group: str  # the file it comes from: groups take turns
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DistillOptions:
    """How the target is asked. Half of the answers are greedy: `temperatures` is a cycle, repeats count."""

    num_tokens: int = 1_000_000  # of answers, held-out ones included
    max_new_tokens: int = 256
    temperatures: tuple[float, ...] = (0.0, 0.7, 0.0, 1.0)
    held_out: float = 0.03  # share of the questions
    seed: int = 0


@dataclass(frozen=True)
class Job:
    """A question to ask at a temperature."""

    question: Question
    temperature: float
    seed: int


def split_of(question_id: str, held_out: float) -> str:
    """Which side a question is on: a function of its id alone, so that no answer to it ever changes sides."""
    share = int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:4], "big") / 2**32
    return HELD_OUT if share < held_out else TRAIN


def schedule(questions: Sequence[Question], options: DistillOptions) -> Iterator[Job]:
    """Jobs in a fixed order: groups take turns, each asks all its questions once before any of them again.

    A question is asked at most once at each temperature.
    """
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.group, []).append(question)
    queues = [_group_jobs(groups[name], name, options) for name in sorted(groups)]
    while queues:
        for queue in list(queues):
            if (job := next(queue, None)) is None:
                queues.remove(queue)
            else:
                yield job


def _group_jobs(questions: list[Question], name: str, options: DistillOptions) -> Iterator[Job]:
    order = list(questions)
    random.Random(f"{options.seed}/{name}").shuffle(order)  # noqa: S311
    cycle = options.temperatures
    for round_ in range(len(set(cycle))):
        for i, question in enumerate(order):
            rotated = dict.fromkeys(cycle[(i + j) % len(cycle)] for j in range(len(cycle)))
            temperature = list(rotated)[round_]
            yield Job(question, temperature, seed_of(options.seed, question.id, temperature))


def seed_of(*parts: object) -> int:
    """A request's seed, from all that tells it from others."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


Progress = Callable[[int, int], None]  # answer tokens so far, and wanted


def self_distill(
    llm: LLM,
    questions: Sequence[Question],
    store: AnswerStore,
    options: DistillOptions,
    progress: Progress,
    deadline_s: float = math.inf,
) -> list[Answer]:
    """Have the target answer until there are `num_tokens` answer tokens or no more questions; all answers so far.

    Past `deadline_s` (of `time.monotonic`) it stops earlier. Neither ends it before there is an answer to train on and
    a held-out greedy one (`check_split` says whether there can be). Answers that are there already are kept: the order
    of jobs is fixed, so the next one is known by their number.
    """
    store.begin(provenance(llm, questions, options))
    answers = _kept(store, schedule(questions, options), llm.model.decoder.spec.vocab_size)
    num_tokens = sum(answer.answer_len for answer in answers)
    progress(num_tokens, options.num_tokens)
    jobs = itertools.islice(schedule(questions, options), len(answers), None)

    def is_enough() -> bool:
        return (num_tokens >= options.num_tokens or time.monotonic() >= deadline_s) and is_usable(answers)

    while not is_enough():
        chunk = [job for _, job in zip(range(_CHUNK_JOBS), jobs, strict=False)]
        if not chunk:
            break
        for job, answer in zip(chunk, _answers(llm, chunk, options), strict=False):
            store.append(len(answers), answer)
            answers.append(answer)
            num_tokens += answer.answer_len
            progress(num_tokens, options.num_tokens)
            assert job.question.id == answer.id
            if is_enough():
                return answers
    return answers


def _kept(store: AnswerStore, jobs: Iterator[Job], vocab_size: int) -> list[Answer]:
    """The answers that are there and belong to the first jobs."""
    answers = store.read()
    for number, answer in enumerate(answers):
        job = next(jobs, None)
        found = (answer.id, answer.temperature, answer.seed, answer.token_ids[: answer.prompt_len])
        asked = job and (job.question.id, job.temperature, job.seed, job.question.prompt_ids)
        if found != asked or max(answer.token_ids) >= vocab_size:
            return store.keep(answers[:number], f"answer {number + 1} is not to the question that was asked")
    return answers


def check_split(questions: Sequence[Question], held_out: float) -> None:
    """`ConfigError` where there is nothing to train on, or nothing to measure on: found out before any answer."""
    num_held_out = sum(split_of(question.id, held_out) == HELD_OUT for question in questions)
    if not 0 < num_held_out < len(questions):
        raise ConfigError(
            f"of {len(questions)} prompts {num_held_out} are held out to measure on ({held_out:.0%}, chosen by their ids), and "
            f"{len(questions) - num_held_out} are to train on; both are needed: give more prompts, {math.ceil(4 / held_out)} "
            f"are nearly always enough"
        )


def _answers(llm: LLM, jobs: Sequence[Job], options: DistillOptions) -> Iterator[Answer]:
    """In the jobs' order, each as soon as it and those before it are there."""
    params = [SamplingParams(temperature=j.temperature, seed=j.seed, max_tokens=options.max_new_tokens) for j in jobs]
    results = llm.iterate([job.question.prompt_ids for job in jobs], params)
    for job, result in zip(jobs, results, strict=False):
        yield Answer(
            id=job.question.id,
            category=job.question.category,
            split=split_of(job.question.id, options.held_out),
            prompt_len=len(job.question.prompt_ids),
            token_ids=(*result.prompt_token_ids, *result.token_ids),
            temperature=job.temperature,
            seed=job.seed,
            finish_reason=result.finish_reason,
        )


def opened(llm: LLM) -> Checkpoint:
    """The target's files; `ConfigError` for a model that another library holds."""
    checkpoint = llm.model.checkpoint
    if not isinstance(checkpoint, Checkpoint):
        raise ConfigError(
            f"{checkpoint.source} was loaded by another library, and a drafter borrows from files; "
            f"give the model's folder, hub id or GGUF file"
        )
    return checkpoint


def provenance(llm: LLM, questions: Sequence[Question], options: DistillOptions) -> dict[str, Any]:
    """What decides the answers, as JSON."""
    digest = hashlib.sha256()
    for question in questions:
        digest.update(repr((question.id, question.group, question.prompt_ids)).encode())
    checkpoint, choice = opened(llm), llm.model.choice
    return {
        "model": checkpoint.source,
        "model_fingerprint": checkpoint.fingerprint,
        "runtime": choice.name,
        "dtype": choice.dtype,
        "questions": len(questions),
        "questions_sha256": digest.hexdigest(),
        "foreword": _version(),
        **asdict(options),
        "temperatures": list(options.temperatures),
    }


def _version() -> str:
    try:
        return version("foreword")
    except PackageNotFoundError:  # run from a source folder that was never installed
        return "unknown"
