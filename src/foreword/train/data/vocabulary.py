"""The draft vocabulary: the tokens that answers are made of."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foreword.errors import ConfigError
from foreword.files import put_aside, write_whole
from foreword.train.data.features import FeatureStore
from foreword.train.loop.resume_state import CHECKPOINT, forget_checkpoint
from foreword.train.loop.settings import TrainSettings
from foreword.train.methods.method import TargetTables

logger = logging.getLogger(__name__)


def count_draft_vocab(
    answers: Iterable[np.ndarray], vocab_size: int, draft_vocab_size: int, forced: Iterable[int]
) -> Tensor:
    """Ids of the `draft_vocab_size` most frequent tokens, ascending (int64); `forced` ones are among them.

    Ties, and tokens that were never seen, are taken in the order of their ids.
    """
    forced_ids = _check(draft_vocab_size, vocab_size, forced)
    counts = np.zeros(vocab_size, dtype=np.int64)
    for token_ids in answers:
        counts += np.bincount(token_ids, minlength=vocab_size)
    counts[forced_ids] = np.iinfo(np.int64).max
    chosen = np.argsort(-counts, kind="stable")[:draft_vocab_size]
    return torch.from_numpy(np.sort(chosen))


def check_vocab_size(draft_vocab_size: int, target: TargetTables) -> None:
    """`ConfigError` where a vocabulary of this size has no room for the target's end tokens."""
    _check(min(draft_vocab_size, target.spec.vocab_size), target.spec.vocab_size, target.eos_token_ids)


def _check(draft_vocab_size: int, vocab_size: int, forced: Iterable[int]) -> list[int]:
    forced_ids = sorted(set(forced))
    if not len(forced_ids) <= draft_vocab_size <= vocab_size:
        raise ConfigError(
            f"draft_vocab_size is {draft_vocab_size}; allowed: {max(len(forced_ids), 1)} to the model's {vocab_size}"
        )
    return forced_ids


def vocab_maps(ids: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """`d2t` (target id minus draft id, int64) and `t2d` (whether a target id is drafted, bool) [eagle3]."""
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    return ids - torch.arange(len(ids)), t2d


def draft_ids(ids: Tensor, vocab_size: int) -> Tensor:
    """For each target id its draft id, -1 where it has none."""
    table = torch.full((vocab_size,), -1, dtype=torch.int64)
    table[ids] = torch.arange(len(ids))
    return table


def drafted_vocab(target: TargetTables, store: FeatureStore, settings: TrainSettings, resume: Path) -> Tensor:
    """The draft vocabulary of a run (ids, ascending): counted once and kept in `resume`, since weights depend on it."""
    path = resume / "draft_vocab.json"
    if (kept := _kept(path, target.spec.vocab_size)) is not None:
        return kept
    answers = (
        store.token_ids(entry.start + entry.prompt_len, entry.start + entry.length)
        for entry in store.entries
        if entry.split == "train"
    )
    size = min(settings.draft_vocab_size, target.spec.vocab_size)
    vocab_ids = count_draft_vocab(answers, target.spec.vocab_size, size, target.eos_token_ids)
    write_whole(path, json.dumps(vocab_ids.tolist()))
    return vocab_ids


def _kept(path: Path, vocab_size: int) -> Tensor | None:
    """The ids in the file; None where there is none, or a damaged one: that is told, and its training state put aside."""
    if not path.is_file():
        return None
    try:
        ids = json.loads(path.read_bytes())
        if not ids or any(type(i) is not int or not 0 <= i < vocab_size for i in ids) or ids != sorted(set(ids)):
            raise ValueError("it is no list of ascending token ids")
    except (ValueError, TypeError, RecursionError) as error:
        aside = put_aside(path)
        forget_checkpoint(path.parent / CHECKPOINT)
        logger.warning("%s is damaged (%s): it is now %s; training begins anew", path, error, aside.name)
        return None
    return torch.tensor(ids)
