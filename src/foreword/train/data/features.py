"""Features: what the target computes while it reads its own answers, kept on disk.

    features/tokens.i32    N            token ids of all answers, prompts included
    features/taps.bf16     N x taps x H residual streams, by tap in the order asked for
    features/hidden.bf16   N x H        the final norm's output; the head on it gives the soft targets
    features/choices.i32   N            likeliest next token over the whole vocabulary; -1 inside the prompt
    features/index.jsonl                one answer per line: where it starts, how long it and its prompt are, its split

An index line is written after the rows it names, so what a kill leaves behind it is cut off and read again. Bfloat16
keeps the range of the residual stream's few huge values; a token of SmolLM2-135M takes 4.6 kB.
"""

import json
import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foreword.errors import ConfigError
from foreword.files import whole_lines, write_whole
from foreword.train.data.answers import Answer

logger = logging.getLogger(__name__)

FOLDER, INDEX, INFO = "features", "index.jsonl", "info.json"


@dataclass(frozen=True)
class Entry:
    """Where one answer's rows are."""

    start: int
    length: int
    prompt_len: int
    split: str
    category: str | None
    temperature: float
    checksum: int | None = None  # CRC-32 of its rows in all files; None in what an older version wrote

    @property
    def answer_len(self) -> int:
        """Tokens of the answer."""
        return self.length - self.prompt_len


@dataclass(frozen=True)
class PassRows:
    """What the target computed over one answer."""

    taps: Tensor  # bfloat16 (n, taps * H)
    hidden: Tensor  # bfloat16 (n, H)
    choices: np.ndarray  # int32 (n)


@dataclass(frozen=True)
class Rows:
    """Features of consecutive tokens, as views of the files: never write to them."""

    token_ids: Tensor  # int64 (n)
    taps: Tensor  # bfloat16 (n, taps, H)
    hidden: Tensor  # bfloat16 (n, H)
    choices: Tensor  # int64 (n)


class FeatureStore:
    """Features in a folder; grows by whole answers."""

    def __init__(self, folder: Path, taps: tuple[int, ...], hidden_size: int) -> None:
        self.folder, self.taps, self.hidden_size = folder / FOLDER, taps, hidden_size
        self.entries: list[Entry] = []
        self._maps: dict[str, np.ndarray] = {}

    def begin(self, info: dict[str, Any]) -> None:
        """Make the folder, or make sure it was made the same way, and drop half-written rows."""
        info = {**info, "taps": list(self.taps), "hidden_size": self.hidden_size}
        path = self.folder / INFO
        if path.is_file() and (known := self._read_info(path)) is not None and known != info:
            raise ConfigError(
                f"{self.folder} holds features of {known}; now they would be of {info}; give another --out"
            )
        write_whole(path, json.dumps(info))
        self.entries = self._read_index()
        num_whole = next((i for i, entry in enumerate(self.entries) if not self._is_whole(entry)), len(self.entries))
        self._keep(num_whole, "their files are cut short or damaged")

    def match(self, answers: Sequence[Answer]) -> None:
        """Leave out the features of other answers than these, and all behind them."""
        num_same = 0
        for entry, answer in zip(self.entries, answers, strict=False):
            found = (entry.prompt_len, entry.split, self.token_ids(entry.start, entry.start + entry.length).tolist())
            if found != (answer.prompt_len, answer.split, list(answer.token_ids)):
                break
            num_same += 1
        self._keep(num_same, "they are of other answers than there are now")

    @property
    def num_rows(self) -> int:
        """Tokens of all answers."""
        return self.entries[-1].start + self.entries[-1].length if self.entries else 0

    def append(self, answers: Sequence[Answer], rows: Sequence[PassRows]) -> None:
        """Add whole answers with their rows."""
        columns = {
            "tokens.i32": np.concatenate([np.asarray(answer.token_ids, dtype=np.int32) for answer in answers]),
            "taps.bf16": torch.cat([row.taps for row in rows]).view(torch.int16).numpy(),
            "hidden.bf16": torch.cat([row.hidden for row in rows]).view(torch.int16).numpy(),
            "choices.i32": np.concatenate([row.choices for row in rows]),
        }
        for name, values in columns.items():
            with (self.folder / name).open("ab") as file:
                file.write(values.tobytes())
        begin = self.num_rows
        with (self.folder / INDEX).open("a") as file:
            for answer in answers:
                rows_of_it = slice(self.num_rows - begin, self.num_rows - begin + len(answer.token_ids))
                entry = Entry(
                    self.num_rows,
                    len(answer.token_ids),
                    answer.prompt_len,
                    answer.split,
                    answer.category,
                    answer.temperature,
                    _checksum(values[rows_of_it] for values in columns.values()),
                )
                self.entries.append(entry)
                file.write(json.dumps(asdict(entry)) + "\n")
        self._maps.clear()

    def _is_whole(self, entry: Entry) -> bool:
        """Whether the rows of an answer are there, as they were written."""
        begin, end, parts = entry.start, entry.start + entry.length, []
        for name, width, item_bytes in self._columns():
            path, row_bytes = self.folder / name, width * item_bytes
            if not path.is_file() or path.stat().st_size < end * row_bytes:
                return False
            if entry.checksum is not None:
                with path.open("rb") as file:
                    file.seek(begin * row_bytes)
                    parts.append(file.read(entry.length * row_bytes))
        return entry.checksum is None or _checksum(parts) == entry.checksum

    def _keep(self, num: int, reason: str) -> None:
        """Drop the features of all answers but the first ones, which is told, and rows that no line of the index names."""
        if num < len(self.entries):
            logger.warning(
                "%s: features of %d answers are read again, as %s", self.folder, len(self.entries) - num, reason
            )
            self.entries = self.entries[:num]
            write_whole(self.folder / INDEX, "".join(json.dumps(asdict(entry)) + "\n" for entry in self.entries))
        self._maps.clear()
        for name, width, item_bytes in self._columns():
            with (self.folder / name).open("ab") as file:
                file.truncate(self.num_rows * width * item_bytes)

    def rows(self, start: int, end: int) -> Rows:
        """Features of the tokens [start, end)."""
        maps = self._open_maps()
        return Rows(
            torch.from_numpy(maps["tokens.i32"][start:end].astype(np.int64)),
            _bfloat16(maps["taps.bf16"][start:end]).view(-1, len(self.taps), self.hidden_size),
            _bfloat16(maps["hidden.bf16"][start:end]),
            torch.from_numpy(maps["choices.i32"][start:end].astype(np.int64)),
        )

    def token_ids(self, start: int, end: int) -> np.ndarray:
        """The tokens [start, end), int32."""
        return self._open_maps()["tokens.i32"][start:end]

    def _columns(self) -> list[tuple[str, int, int]]:
        """File, values per row, bytes per value."""
        hidden = self.hidden_size
        return [
            ("tokens.i32", 1, 4),
            ("taps.bf16", len(self.taps) * hidden, 2),
            ("hidden.bf16", hidden, 2),
            ("choices.i32", 1, 4),
        ]

    def _open_maps(self) -> dict[str, np.ndarray]:
        if not self._maps:
            for name, width, item_bytes in self._columns():
                kind = np.int32 if item_bytes == 4 else np.int16
                shape = (self.num_rows, width) if width > 1 else (self.num_rows,)
                self._maps[name] = np.memmap(self.folder / name, kind, "r", shape=shape)
        return self._maps

    def _read_info(self, path: Path) -> Any:
        """How the features were made; None where that is damaged: they are all read again."""
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            logger.warning("%s is damaged (%s): all features are read again", path, error)
            (self.folder / INDEX).unlink(missing_ok=True)
            return None

    def _read_index(self) -> list[Entry]:
        """Up to the first line that is damaged or does not go on where the one before ends."""
        path, found = self.folder / INDEX, []
        if not path.is_file():
            return []
        lines = whole_lines(path)
        for line in lines:
            if (entry := _entry(line)) is None or entry.start != (found[-1].start + found[-1].length if found else 0):
                break
            found.append(entry)
        if len(found) < len(lines):
            logger.warning(
                "%s: line %d is damaged; features of %d answers are read again",
                path,
                len(found) + 1,
                len(lines) - len(found),
            )
            write_whole(path, "".join(json.dumps(asdict(entry)) + "\n" for entry in found))
        return found


def _entry(line: bytes) -> Entry | None:
    """None for a damaged line."""
    try:
        entry = Entry(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = (entry.start, entry.length, entry.prompt_len)
    is_sound = all(type(n) is int and n >= 0 for n in numbers) and 0 < entry.prompt_len <= entry.length
    return entry if is_sound and type(entry.temperature) in (int, float) else None


def _checksum(parts: Iterable[Any]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _bfloat16(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(values)).view(torch.bfloat16)  # a copy: the map is read-only
