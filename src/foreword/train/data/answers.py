"""The target's answers, kept on disk.

    answers/info.json           which model, how it was run, which questions and options
    answers/00000.jsonl ...     shards, an answer per line, in the order of `self_distill.schedule`
        {"id", "category", "split", "prompt_len", "token_ids", "temperature", "seed", "finish_reason"}
    answers/*.damaged           what could not be read, and all behind it

Shards only grow: whoever is killed goes on behind the last whole line. `token_ids` is the prompt and the answer.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foreword.errors import ConfigError
from foreword.files import put_aside, whole_file, whole_lines, write_whole

logger = logging.getLogger(__name__)

INFO, FOLDER = "info.json", "answers"
HELD_OUT, TRAIN = "held_out", "train"
_SHARD_LINES = 1024


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


class AnswerStore:
    """The answers in a folder, and the right to add to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def begin(self, info: dict[str, Any]) -> None:
        """Make the folder, or make sure that what is in it was made the same way. `num_tokens` may change."""
        path = self.folder / INFO
        if path.is_file():
            known = self.info()
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
        """How the answers were made; `ConfigError` where that cannot be read."""
        path = self.folder / INFO
        try:
            found = json.loads(path.read_bytes())
            if not isinstance(found, dict):
                raise ValueError("it is no table")
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} is damaged ({error}), so that nobody knows what the answers in {self.folder} were made with; "
                f"give another --data or --out, or delete {self.folder} to have the model answer again"
            ) from error
        return found

    def read(self) -> list[Answer]:
        """The whole answers. What a kill left of a last line is cut off; what is damaged is put aside with all behind it."""
        answers: list[Answer] = []
        shards = sorted(self.folder.glob("*.jsonl"))
        for number, shard in enumerate(shards):
            for line in whole_lines(shard):
                if (answer := _parse(line)) is None:
                    return self.keep(answers, f"line {len(answers) % _SHARD_LINES + 1} of {shard.name} is damaged")
                answers.append(answer)
            if shard.stem != f"{number:05d}" or (len(answers) < (number + 1) * _SHARD_LINES and shard != shards[-1]):
                return self.keep(answers[: number * _SHARD_LINES], f"there are lines missing before {shards[-1].name}")
        return answers

    def keep(self, answers: list[Answer], reason: str) -> list[Answer]:
        """Put aside all answers but these first ones, and say so."""
        num = len(answers)
        shards = [s for s in sorted(self.folder.glob("*.jsonl")) if int(s.stem) >= num // _SHARD_LINES]
        logger.warning(
            "%s: %s; its first %d answers are kept, the model gives those behind them again", self.folder, reason, num
        )
        for shard in shards:
            lines = put_aside(shard).read_bytes().splitlines(keepends=True)
            kept = lines[: max(0, num - int(shard.stem) * _SHARD_LINES)]
            if kept:
                with whole_file(shard) as file:
                    file.write(b"".join(kept))
        return answers

    def append(self, index: int, answer: Answer) -> None:
        """Write the `index`-th answer."""
        with (self.folder / f"{index // _SHARD_LINES:05d}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(answer)) + "\n")


def _parse(line: bytes) -> Answer | None:
    """None for a damaged line."""
    try:
        values = json.loads(line)
        answer = Answer(**{**values, "token_ids": tuple(values["token_ids"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_sound = type(answer.prompt_len) is int and 0 < answer.prompt_len <= len(answer.token_ids)
    is_sound = is_sound and answer.split in (HELD_OUT, TRAIN) and type(answer.temperature) in (int, float)
    return answer if is_sound and all(type(i) is int and i >= 0 for i in answer.token_ids) else None


def is_usable(answers: Sequence[Answer]) -> bool:
    """Whether there is something to learn from and something to measure on."""
    return all(any(is_usable_for(answer, side) for answer in answers) for side in (TRAIN, HELD_OUT))


def is_usable_for(answer: Answer, side: str) -> bool:
    """Whether an answer can be trained on, or measured on: those are greedy."""
    return answer.split == side and answer.answer_len >= 2 and (side == TRAIN or answer.temperature == 0)
