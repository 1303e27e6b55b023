"""Features: what the target computes while it reads its own answers, kept on disk.

    features/tokens.i32    N            token ids of all answers, prompts included
    features/taps.bf16     N x taps x H residual streams, by tap in the order asked for
    features/hidden.bf16   N x H        the final norm's output; the head on it gives the soft targets
    features/choices.i32   N            likeliest next token over the whole vocabulary; -1 inside the prompt
    features/index.jsonl                an answer a line: where it starts, how long it and its prompt are, its split

An index line is written after the rows it names, so what a kill leaves behind it is cut off and read again. Bfloat16
keeps the range of the residual stream's few huge values; a token of SmolLM2-135M takes 4.6 kB.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foreword.errors import ConfigError
from foreword.files import whole_lines, write_whole
from foreword.runtime.base import Decoder, KVCache, Need, PassOutput
from foreword.runtime.torch_threads import TorchThreads
from foreword.sampling.params import Warp
from foreword.sampling.sampler import Draw
from foreword.train.data.self_distill import Answer, is_usable
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack

FOLDER, INDEX, INFO = "features", "index.jsonl", "info.json"
_ROWS = 512  # tokens a pass
_FLUSH_ANSWERS = 64


@dataclass(frozen=True)
class Entry:
    """Where one answer's rows are."""

    start: int
    length: int
    prompt_len: int
    split: str
    category: str | None
    temperature: float

    @property
    def answer_len(self) -> int:
        """Tokens of the answer."""
        return self.length - self.prompt_len


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
        if path.is_file() and (known := json.loads(path.read_text())) != info:
            raise ConfigError(
                f"{self.folder} holds features of {known}; now they would be of {info}; give another --out"
            )
        write_whole(path, json.dumps(info))
        self.entries = self._read_index()
        for name, width, item_bytes in self._columns():
            with (self.folder / name).open("ab") as file:
                file.truncate(self.num_rows * width * item_bytes)

    @property
    def num_rows(self) -> int:
        """Tokens of all answers."""
        return self.entries[-1].start + self.entries[-1].length if self.entries else 0

    def append(self, answers: Sequence[Answer], rows: Sequence["PassRows"]) -> None:
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
        with (self.folder / INDEX).open("a") as file:
            for answer in answers:
                entry = Entry(
                    self.num_rows,
                    len(answer.token_ids),
                    answer.prompt_len,
                    answer.split,
                    answer.category,
                    answer.temperature,
                )
                self.entries.append(entry)
                file.write(json.dumps(asdict(entry)) + "\n")
        self._maps.clear()

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
        """File, values a row, bytes a value."""
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

    def _read_index(self) -> list[Entry]:
        path = self.folder / INDEX
        if not path.is_file():
            return []
        return [Entry(**json.loads(line)) for line in whole_lines(path)]


def _bfloat16(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(values)).view(torch.bfloat16)  # a copy: the map is read-only


@dataclass(frozen=True)
class PassRows:
    """What the target computed over one answer."""

    taps: Tensor  # bfloat16 (n, taps * H)
    hidden: Tensor  # bfloat16 (n, H)
    choices: np.ndarray  # int32 (n)


def extract_features(
    decoder: Decoder,
    answers: Sequence[Answer],
    store: FeatureStore,
    progress: Callable[[int, int], None],
    deadline_s: float = math.inf,
) -> None:
    """Read the answers that the store does not have yet and add their features, in order.

    Past `deadline_s` (of `time.monotonic`) it stops, once there is an answer to train on and one to measure on.
    """
    cache = decoder.new_cache()
    todo = list(answers[len(store.entries) :])
    num_tokens, num_done = sum(len(answer.token_ids) for answer in todo), 0
    batch: list[Answer] = []
    rows: list[PassRows] = []
    threads = TorchThreads(1 if decoder.has_own_threads else None)
    for group in _groups(todo):
        with threads:
            rows += _read_group(decoder, cache, group, store.taps)
        batch += group
        if time.monotonic() >= deadline_s and is_usable(answers[: len(store.entries) + len(batch)]):
            break
        if len(batch) >= _FLUSH_ANSWERS:
            store.append(batch, rows)
            num_done += sum(len(answer.token_ids) for answer in batch)
            batch, rows = [], []
            progress(num_done, num_tokens)
    if batch:
        store.append(batch, rows)
    progress(num_done + sum(len(answer.token_ids) for answer in batch), num_tokens)


def _groups(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    """Neighbours that fit in one pass together; a longer answer is alone."""
    group: list[Answer] = []
    num_rows = 0
    for answer in answers:
        if group and num_rows + len(answer.token_ids) > _ROWS:
            yield group
            group, num_rows = [], 0
        group.append(answer)
        num_rows += len(answer.token_ids)
    if group:
        yield group


def _read_group(decoder: Decoder, cache: KVCache, group: list[Answer], taps: tuple[int, ...]) -> list[PassRows]:
    """Features of some answers, in passes of at most `_ROWS` tokens."""
    if len(group) > 1:
        slots = [cache.open(len(answer.token_ids)) for answer in group]
        try:
            out, starts = _pass(decoder, cache, slots, group, 0, _ROWS, taps)
        finally:
            for slot in slots:
                cache.close(slot)
        return [_cut(out, first, end) for first, end in zip(starts, starts[1:], strict=False)]
    (answer,) = group
    slot = cache.open(len(answer.token_ids))
    parts = []
    try:
        for start in range(0, len(answer.token_ids), _ROWS):
            out, starts = _pass(decoder, cache, [slot], group, start, _ROWS, taps)
            cache.commit(slot, range(starts[1]))
            parts.append(_cut(out, 0, starts[1]))
    finally:
        cache.close(slot)
    return [
        PassRows(
            torch.cat([part.taps for part in parts]),
            torch.cat([part.hidden for part in parts]),
            np.concatenate([part.choices for part in parts]),
        )
    ]


def _pass(
    decoder: Decoder,
    cache: KVCache,
    slots: list[int],
    group: list[Answer],
    start: int,
    num_rows: int,
    taps: tuple[int, ...],
) -> tuple[PassOutput, Sequence[int]]:
    """Tokens [start, start + num_rows) of each answer in one pass, and where each answer's begin in it.

    The choice after a token matters from the prompt's last token on.
    """
    chains = [DraftTree.chain(list(answer.token_ids[start : start + num_rows])) for answer in group]
    batch = pack(chains, [start] * len(group), slots)
    nodes = [
        node
        for answer, first, end in zip(group, batch.starts, batch.starts[1:], strict=False)
        for node in range(first + max(answer.prompt_len - 1 - start, 0), end)
    ]
    need = Need(draws=[Draw(node, Warp(), 0) for node in nodes], taps=taps, hidden=True)
    out = decoder.forward(batch, cache, need)
    choices = np.full(batch.num_nodes, -1, dtype=np.int32)
    choices[nodes] = out.choices
    out.choices = choices.tolist()
    return out, batch.starts


def _cut(out: PassOutput, first: int, end: int) -> PassRows:
    """One answer's rows of a pass."""
    assert out.taps is not None
    assert out.hidden is not None
    return PassRows(
        out.taps[first:end].flatten(1).to(torch.bfloat16),
        out.hidden[first:end].to(torch.bfloat16),
        np.asarray(out.choices[first:end], dtype=np.int32),
    )
