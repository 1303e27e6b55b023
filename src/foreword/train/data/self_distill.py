"""Self-distillation: the target answers the prompts itself, and its own answers are what a drafter learns from.

    answers/info.json           which model, how it was run, which questions and options
    answers/00000.jsonl ...     shards, an answer a line, in the order of `schedule`
        {"id", "category", "split", "prompt_len", "token_ids", "temperature", "seed", "finish_reason"}

Shards only grow: whoever is killed goes on behind the last whole line. `token_ids` is the prompt and the answer.
"""

import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from foreword.checkpoint.opened import Checkpoint
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.files import whole_lines, write_whole
from foreword.sampling.params import SamplingParams

INFO, FOLDER = "info.json", "answers"
_SHARD_LINES = 1024
_CHUNK_JOBS = 4096  # asked in one call: only at its end do places in the batch stay empty
HELD_OUT, TRAIN = "held_out", "train"


@dataclass(frozen=True)
class Question:
    """A prompt to train on."""

    id: str
    category: str | None
    group: str  # the file it comes from: groups take turns
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """What the target said; `token_ids` begins with the prompt."""

    id: str
    category: str | None
    split: str  # HELD_OUT answers judge a drafter and never train it
    prompt_len: int
    token_ids: tuple[int, ...]
    temperature: float
    seed: int
    finish_reason: str

    @property
    def answer_len(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids) - self.prompt_len


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


class AnswerStore:
    """The answers in a folder, and the right to add to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def begin(self, info: dict[str, Any]) -> None:
        """Make the folder, or make sure that what is in it was made the same way. `num_tokens` may change."""
        path = self.folder / INFO
        if path.is_file():
            known = json.loads(path.read_text())
            for key in sorted({*known, *info} - {"num_tokens", "foreword"}):
                if known.get(key) != info.get(key):
                    raise ConfigError(
                        f"{self.folder} holds answers made with {key} {known.get(key)!r}, now it is {info.get(key)!r}; "
                        f"go on with the same, or give another --out"
                    )
        write_whole(path, json.dumps(info, indent=1))

    @property
    def has_begun(self) -> bool:
        """Whether it is settled which questions are asked."""
        return (self.folder / INFO).is_file()

    def info(self) -> dict[str, Any]:
        """How the answers were made."""
        return json.loads((self.folder / INFO).read_text())

    def read(self) -> list[Answer]:
        """All whole answers; what a kill left of a last line is cut off."""
        answers = []
        for shard in sorted(self.folder.glob("*.jsonl")):
            answers += [_parse(line) for line in whole_lines(shard)]
        return answers

    def append(self, index: int, answer: Answer) -> None:
        """Write the `index`-th answer."""
        with (self.folder / f"{index // _SHARD_LINES:05d}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(answer)) + "\n")


def _parse(line: bytes) -> Answer:
    values = json.loads(line)
    return Answer(**{**values, "token_ids": tuple(values["token_ids"])})


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
    answers = store.read()
    num_tokens = sum(answer.answer_len for answer in answers)
    progress(num_tokens, options.num_tokens)
    jobs = schedule(questions, options)
    for _ in answers:
        next(jobs)

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


def is_usable(answers: Sequence[Answer]) -> bool:
    """Whether there is something to learn from and something to measure on."""
    long = [a for a in answers if a.answer_len >= 2]
    return any(a.split == TRAIN for a in long) and any(a.split == HELD_OUT and a.temperature == 0 for a in long)


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
