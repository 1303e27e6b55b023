"""N-gram counts of a model's own answers, as a file.

    model.safetensors
        keys     (contexts) u64   hash of a context's tokens (`context_keys`), ascending
        counts   (contexts) u8    how many continuations each has
        ids      (entries) u16    token ids of the continuations, most probable first; u32 for vocabularies above 65,536
        chances  (entries) u8     in parts of 255

A context of which nothing is known is looked up by its last tokens alone: the longest one that is there answers.
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8, UInt64
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from foreword.checkpoint.drafter_kind import card_of
from foreword.checkpoint.json_file import read_json_if_any
from foreword.errors import CheckpointError
from foreword.files import whole_file

FILE = "model.safetensors"
MOST_ORDER = 8
_FACTOR = 0x9E3779B97F4A7C15  # odd, its bits without a pattern: 2^64 over the golden ratio
_MASK = (1 << 64) - 1
_TENSORS = ("keys", "counts", "ids", "chances")
_KINDS = tuple(("uint64 x 1", "uint8 x 1", f"{ids} x 1", "uint8 x 1") for ids in ("uint16", "uint32"))
SCALE = 255


def context_keys(last_ids: Sequence[int]) -> list[int]:
    """Keys of the contexts of 1, 2, ... tokens that end with the last of `last_ids`."""
    keys, key = [], 0
    for token in reversed(last_ids):
        key = (key * _FACTOR + token + 1) & _MASK
        keys.append(key)
    return keys


def next_keys(keys: UInt64[np.ndarray, " n"], tokens: Int[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Of contexts that begin one token earlier than those of `keys` (zeros: the empty ones), with that token."""
    with np.errstate(over="ignore"):
        return keys * np.uint64(_FACTOR) + tokens.astype(np.uint64) + np.uint64(1)


class NgramTable:
    """Probabilities of next tokens by context.

    Args:
        order: tokens of the longest contexts.
        keys: of the contexts, ascending.
        counts: continuations of each.
        ids: of all continuations.
        chances: of all continuations, in parts of 255.
    """

    def __init__(
        self,
        order: int,
        keys: UInt64[np.ndarray, " contexts"],
        counts: UInt8[np.ndarray, " contexts"],
        ids: Int[np.ndarray, " entries"],
        chances: UInt8[np.ndarray, " entries"],
    ) -> None:
        self.order = order
        self.keys, self.counts, self.ids, self.chances = keys, counts, ids, chances
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        # A few numbers are looked at in a large table: Python reads those faster through a memoryview than numpy does.
        self._key_at, self._start_at = keys.data, self._starts.data
        self._id_at, self._chance_at = ids.data, chances.data

    @classmethod
    def empty(cls, order: int) -> "NgramTable":
        """One that knows nothing."""
        return cls(order, *(np.zeros(0, dtype=kind) for kind in (np.uint64, np.uint8, np.uint16, np.uint8)))

    def after(self, last_ids: Sequence[int]) -> list[tuple[int, float]]:
        """Continuations with their probabilities, most probable first, of the longest known context among `last_ids`' ends."""
        for key in reversed(context_keys(last_ids[-self.order :])):
            place = bisect_left(self._key_at, key)
            if place < len(self._key_at) and self._key_at[place] == key:
                entries = range(self._start_at[place], self._start_at[place + 1])
                return [(self._id_at[entry], self._chance_at[entry] / SCALE) for entry in entries]
        return []

    @property
    def num_bytes(self) -> int:
        """Of the file, but for its header."""
        return sum(values.nbytes for values in (self.keys, self.counts, self.ids, self.chances))

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in _TENSORS}
        with whole_file(path) as file:
            file.write(save(tensors, metadata={"format": "np"}))


def load_table(folder: Path, vocab_size: int | None = None) -> NgramTable:
    """The table in a drafter's folder, checked to be one, and, where that is given, to fit a vocabulary.

    Raises:
        CheckpointError: there is none, it is damaged, or for another vocabulary.
    """
    path = folder / FILE
    card = card_of(read_json_if_any(folder / "config.json"))
    try:
        found = load_file(path)
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:  # numpy does not know all dtypes
        raise CheckpointError(
            f"{folder} holds no n-gram table ({error}); make one with: foreword train ngram_lm"
        ) from error
    if missing := [name for name in _TENSORS if name not in found]:
        kind = card.get("method", "not stated")
        raise CheckpointError(
            f"{path} has no tensor {missing[0]!r}, so it is no n-gram table (its card's method: {kind}); make one with: "
            f"foreword train ngram_lm"
        )
    keys, counts, ids, chances = (found[name] for name in _TENSORS)
    order = card.get("order")
    kinds = tuple(f"{values.dtype} x {values.ndim}" for values in (keys, counts, ids, chances))
    if kinds not in _KINDS:
        raise CheckpointError(
            f"{path} is damaged: keys, counts, ids and chances are {', '.join(kinds)}; allowed: {', '.join(_KINDS[0])} "
            f"(number x dimensions; ids also uint32); make it anew"
        )
    num_entries = int(counts.sum(dtype=np.int64))
    is_whole = (
        len(keys) == len(counts) and num_entries == len(ids) == len(chances) and not np.any(keys[1:] <= keys[:-1])
    )
    if not is_whole or type(order) is not int or not 1 <= order <= MOST_ORDER:
        raise CheckpointError(
            f"{path} is damaged: order {order!r}, {len(keys)} keys, which should rise, {len(counts)} counts that add up to "
            f"{num_entries}, {len(ids)} ids, {len(chances)} chances; make it anew"
        )
    if vocab_size is not None and num_entries and int(ids.max()) >= vocab_size:
        raise CheckpointError(
            f"{path} names token {int(ids.max())}; this model's are 0 to {vocab_size - 1}: it was made for another model"
        )
    return NgramTable(order, keys, counts, ids, chances)
