"""Reading answers through the target once more, for the features that drafters learn from."""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from foreword.runtime.base import Decoder, KVCache, Need, PassOutput
from foreword.runtime.torch_threads import TorchThreads
from foreword.sampling.params import Warp
from foreword.sampling.sampler import Draw
from foreword.train.data.answers import Answer, is_usable
from foreword.train.data.features import FeatureStore, PassRows
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack

_ROWS = 512  # tokens per pass
_FLUSH_ANSWERS = 64


def extract_features(
    decoder: Decoder,
    answers: Sequence[Answer],
    store: FeatureStore,
    progress: Callable[[int, int], None],
    deadline_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Read the answers that the store does not have yet and add their features, in order.

    Past `deadline_s` (of `clock`) it stops, once there is an answer to train on and one to measure on.
    """
    store.match(answers)
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
        if clock() >= deadline_s and is_usable(answers[: len(store.entries) + len(batch)]):
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
