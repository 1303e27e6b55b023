"""Batches of answers, in an order that a seed and a position say exactly.

Answers of a batch have like lengths and are aligned at their ends, so that the answers are the last columns of all:

    column      0    1    2    3    4    5    6    7
    answer a    p    p    p    p    A    A    A    A      p: prompt, A: answer
    answer b    -    -    p    p    p    A    A    A      -: padding

Prompts are context only: nothing is predicted inside them, so most work is done for the last columns alone. A prompt's
beginning that does not fit in `max_len` is left out; the rotary embedding knows distances only.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foreword.train.data.features import Entry, FeatureStore

_POOL_BATCHES = 32  # answers of so many batches are sorted by length together


@dataclass(frozen=True)
class Batch:
    """Features of B answers, right-aligned in T columns; the last A columns hold every answer."""

    token_ids: Tensor  # int64 (B, T); 0 in padding
    taps: Tensor  # bfloat16 (B, T, taps * H)
    hidden: Tensor  # bfloat16 (B, A, H)
    choices: Tensor  # int64 (B, A)
    starts: Tensor  # int64 (B): first column that is no padding
    answer_starts: Tensor  # int64 (B): column of the prompt's last token, the first whose pair drafts
    is_greedy: Tensor  # bool (B)
    features: Tensor | None = None  # bfloat16 (B, T, H): `hidden` of all columns

    @property
    def num_columns(self) -> int:
        """T."""
        return self.token_ids.shape[1]

    @property
    def answer_columns(self) -> int:
        """A."""
        return self.hidden.shape[1]

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of all answers."""
        return int((self.num_columns - 1 - self.answer_starts).sum())


@dataclass(frozen=True)
class Position:
    """The next batch."""

    epoch: int = 0
    batch: int = 0


class BatchOrder:
    """Which answers make up which batch, epoch after epoch.

    Args:
        entries: the answers to train on.
        tokens: most answer columns of a batch, padding included.
        seed: of the shuffles.
    """

    def __init__(self, entries: Sequence[Entry], tokens: int, seed: int) -> None:
        self._entries, self._tokens, self._seed = entries, tokens, seed
        self._epoch, self._batches = -1, [[0]]

    def batch(self, position: Position) -> list[Entry]:
        """The answers of a batch."""
        return [self._entries[i] for i in self._of_epoch(position.epoch)[position.batch]]

    def after(self, position: Position) -> Position:
        """The position that follows."""
        if position.batch + 1 < len(self._of_epoch(position.epoch)):
            return replace(position, batch=position.batch + 1)
        return Position(position.epoch + 1, 0)

    def num_batches(self, epoch: int) -> int:
        """Batches of an epoch."""
        return len(self._of_epoch(epoch))

    def _of_epoch(self, epoch: int) -> list[list[int]]:
        if epoch != self._epoch:
            chance = random.Random(f"{self._seed}/{epoch}")  # noqa: S311
            order = list(range(len(self._entries)))
            chance.shuffle(order)
            lengths = [entry.answer_len for entry in self._entries]
            mean_len = max(1, sum(lengths) // max(1, len(lengths)))
            pool = max(1, _POOL_BATCHES * self._tokens // mean_len)
            batches = []
            for start in range(0, len(order), pool):
                ordered = sorted(order[start : start + pool], key=lambda i: (lengths[i], i))
                batches += _split(ordered, lengths, self._tokens)
            chance.shuffle(batches)
            self._epoch, self._batches = epoch, batches
        return self._batches


def _split(ordered: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Neighbours as long as batch size times the longest answer stays within `tokens`."""
    batches: list[list[int]] = [[]]
    for i in ordered:
        if batches[-1] and (len(batches[-1]) + 1) * lengths[i] > tokens:
            batches.append([])
        batches[-1].append(i)
    return batches


def in_order(entries: Sequence[Entry], tokens: int) -> Iterator[list[Entry]]:
    """All answers once, by length: for measuring."""
    ordered = sorted(range(len(entries)), key=lambda i: (entries[i].answer_len, i))
    for batch in _split(ordered, [entry.answer_len for entry in entries], tokens):
        yield [entries[i] for i in batch]


def collate(store: FeatureStore, entries: Sequence[Entry], max_len: int) -> Batch:
    """Read the features of some answers, all with at least one answer token, at most `max_len` columns each."""
    lengths = [min(entry.length, max_len) for entry in entries]
    answer_lens = [min(entry.answer_len + 1, length) for entry, length in zip(entries, lengths, strict=True)]
    size, columns, width = len(entries), max(lengths), max(answer_lens)
    token_ids = torch.zeros(size, columns, dtype=torch.int64)
    taps = torch.zeros(size, columns, len(store.taps) * store.hidden_size, dtype=torch.bfloat16)
    features = torch.zeros(size, columns, store.hidden_size, dtype=torch.bfloat16)
    choices = torch.full((size, width), -1, dtype=torch.int64)
    for i, (entry, length, answer_len) in enumerate(zip(entries, lengths, answer_lens, strict=True)):
        end = entry.start + entry.length
        rows = store.rows(end - length, end)
        token_ids[i, columns - length :] = rows.token_ids
        taps[i, columns - length :] = rows.taps.flatten(1)
        features[i, columns - length :] = rows.hidden
        choices[i, width - answer_len :] = rows.choices[length - answer_len :]
    return Batch(
        token_ids,
        taps,
        _answer_part(features, columns, torch.tensor(answer_lens), width),
        choices,
        torch.tensor([columns - length for length in lengths]),
        torch.tensor([columns - answer_len for answer_len in answer_lens]),
        torch.tensor([entry.temperature == 0.0 for entry in entries]),
        features,
    )


def _answer_part(features: Tensor, columns: int, answer_lens: Tensor, width: int) -> Tensor:
    """The last `width` columns, zero before each answer's own."""
    column = torch.arange(columns - width, columns)
    is_own = column >= columns - answer_lens[:, None]
    return torch.where(is_own[..., None], features[:, columns - width :], 0.0)


def places(batch: Batch, step: int) -> tuple[Tensor, Tensor]:
    """For each pair (B, A - 1): whether it drafts at this depth, and which row of (B * A) it is judged by.

    Pair t of step s predicts token t + 2 + s, of which the target speaks at column t + 1 + s. The last column is left
    out: nothing of the answer follows it.
    """
    num_rows, columns, width = len(batch.token_ids), batch.num_columns, batch.answer_columns
    pair = torch.arange(columns - width, columns - 1)
    is_place = (pair >= batch.answer_starts[:, None]) & (pair + 1 + step < columns - 1)
    judged = (torch.arange(width - 1) + 1 + step).clamp_max(width - 1)
    return is_place, torch.arange(num_rows)[:, None] * width + judged
