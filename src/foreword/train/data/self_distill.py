"""Self-distillation: the target answers the prompts itself, and its own answers are what a drafter learns from."""

import hashlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from foreword.checkpoint.opened import Checkpoint
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams
from foreword.train.data.answers import HELD_OUT, TRAIN, Answer, AnswerStore, is_usable, is_usable_for

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


def splits(question_ids: Iterable[str], held_out: float) -> dict[str, str]:
    """Which side each question is on, by a hash of its id, so that no answer to it changes sides when others come.

    Where that leaves a side empty, as it may with few questions, the one nearest to it goes there.
    """
    shares = {id_: int.from_bytes(hashlib.sha256(id_.encode()).digest()[:4], "big") / 2**32 for id_ in question_ids}
    sides = {id_: HELD_OUT if share < held_out else TRAIN for id_, share in shares.items()}
    if len(sides) > 1 and len(set(sides.values())) == 1:
        lowest, highest = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
        sides |= {lowest: HELD_OUT, highest: TRAIN}
    return sides


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
    clock: Callable[[], float] = time.monotonic,
) -> list[Answer]:
    """Have the target answer until there are `num_tokens` answer tokens or no more questions; all answers so far.

    Past `deadline_s` (of `clock`) it stops earlier. Neither ends it before there is an answer to train on and a held-out
    greedy one: past its time it asks for these alone. Answers that are there already are kept.
    """
    store.begin(provenance(llm, questions, options))
    sides = splits((question.id for question in questions), options.held_out)
    pending = {_key(job): job for job in schedule(questions, options)}
    answers = _kept(store, pending, llm.model.decoder.spec.vocab_size)
    num_tokens = sum(answer.answer_len for answer in answers)
    progress(num_tokens, options.num_tokens)

    while pending and not (num_tokens >= options.num_tokens and is_usable(answers)):
        is_late = clock() >= deadline_s
        if is_late and is_usable(answers):
            break
        jobs = list(itertools.islice(pending.values(), _CHUNK_JOBS))
        if is_late or num_tokens >= options.num_tokens:
            jobs = _missing(pending.values(), sides, answers)
        for job, answer in zip(jobs, _answers(llm, jobs, options, sides), strict=False):
            store.append(len(answers), answer)
            answers.append(answer)
            del pending[_key(job)]
            num_tokens += answer.answer_len
            progress(num_tokens, options.num_tokens)
            if num_tokens >= options.num_tokens or clock() >= deadline_s:
                break
    return answers


def _missing(pending: Iterable[Job], sides: Mapping[str, str], answers: Sequence[Answer]) -> list[Job]:
    """The next job of each side of which there is no answer that can be used; where there are none, any."""
    jobs = []
    for side in (TRAIN, HELD_OUT):
        if not any(is_usable_for(answer, side) for answer in answers):
            fits = (j for j in pending if sides[j.question.id] == side and (side == TRAIN or j.temperature == 0))
            jobs += list(itertools.islice(fits, 1))
    return jobs or list(itertools.islice(pending, 1))


def _key(job: "Job | Answer") -> tuple[str, float]:
    return (job.question.id if isinstance(job, Job) else job.id), job.temperature


def _kept(store: AnswerStore, pending: dict[tuple[str, float], Job], vocab_size: int) -> list[Answer]:
    """The answers that are there, up to the first that is not to one of the jobs; theirs are taken out of `pending`."""
    answers = store.read()
    for number, answer in enumerate(answers):
        job = pending.get(_key(answer))
        found = (answer.seed, answer.token_ids[: answer.prompt_len])
        if job is None or found != (job.seed, job.question.prompt_ids) or max(answer.token_ids) >= vocab_size:
            return store.keep(answers[:number], f"answer {number + 1} is not to a question that was asked")
        del pending[_key(answer)]
    return answers


def check_enough(question_ids: Iterable[str]) -> None:
    """`ConfigError` where there are too few prompts: found out before any work."""
    num = len(set(question_ids))
    if num < 2:
        raise ConfigError(
            f"there {'is 1 prompt' if num == 1 else 'are no prompts'}; 2 are needed, one to train on and one to measure on, and "
            f"hundreds to learn much: give more in --prompts, or let the model write some with --own-prompts"
        )


def _answers(llm: LLM, jobs: Sequence[Job], options: DistillOptions, sides: Mapping[str, str]) -> Iterator[Answer]:
    """In the jobs' order, each as soon as it and those before it are there."""
    params = [SamplingParams(temperature=j.temperature, seed=j.seed, max_tokens=options.max_new_tokens) for j in jobs]
    results = llm.iterate([job.question.prompt_ids for job in jobs], params)
    for job, result in zip(jobs, results, strict=False):
        yield Answer(
            id=job.question.id,
            category=job.question.category,
            split=sides[job.question.id],
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
