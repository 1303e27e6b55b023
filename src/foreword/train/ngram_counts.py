"""From answers to a table of n-grams: counted, and each context's chances mixed with those of the shorter one [witten91].

    chance(w | context) = a c(context w) / n + (1 - a) chance(w | context without its first token)
    a = n / (n + 3 t)          n: times the context was seen, t: different tokens that followed it

The 3, and the least number of times that a context counts, were fitted on answers to prompts of other kinds than those counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt64

from foreword.draft.ngram_lm.table import SCALE, NgramTable, next_keys

_NOVELTY = 3.0
_LEAST_SEEN = 2  # of contexts of two tokens or more
_KEPT, _KEPT_CHANCE = 8, 0.02  # continuations of a shorter context that a longer one inherits
_SAVED, _SAVED_CHANCE = 4, 0.06
_SAME = 0.04  # a context whose chances differ from the shorter one's by less is left out


@dataclass(frozen=True)
class _Lists:
    """Continuations of contexts: rows sorted by context, likeliest first within one."""

    keys: UInt64[np.ndarray, " rows"]
    ids: Int[np.ndarray, " rows"]
    chances: Float[np.ndarray, " rows"]


def count_ngrams(texts: Sequence[Sequence[int]], prompt_lens: Sequence[int], order: int, vocab_size: int) -> NgramTable:
    """The table of what follows contexts of up to `order` tokens in the answers (texts from `prompt_lens` on)."""
    tokens = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
    begins = np.repeat(np.cumsum([0, *map(len, texts[:-1])]), list(map(len, texts)))
    first = begins + np.repeat(np.asarray(prompt_lens), list(map(len, texts)))
    place = np.arange(len(tokens))
    said = place[place >= first]
    said = said[said > begins[said]]
    lists: list[_Lists] = []
    keys, longer = np.zeros(len(said), dtype=np.uint64), _Lists(*(np.zeros(0, dtype=t) for t in ("u8", "i8", "f8")))
    kept: list[_Lists] = []
    for length in range(1, order + 1):
        is_whole = said - length >= begins[said]
        said, keys = said[is_whole], keys[is_whole]
        shorter_keys, keys = keys, next_keys(keys, tokens[said - length])
        shorter = longer
        longer = _mixed(keys, shorter_keys, tokens[said], shorter, _LEAST_SEEN if length > 1 else 1)
        parents = _parents(longer, keys, shorter_keys)
        kept.append(_told_anew(longer, parents, shorter) if length > 1 else longer)
        lists.append(longer)
    return _table(kept, order, vocab_size)


def _mixed(
    keys: UInt64[np.ndarray, " n"],
    shorter_keys: UInt64[np.ndarray, " n"],
    next_ids: Int[np.ndarray, " n"],
    shorter: _Lists,
    least_seen: int,
) -> _Lists:
    """The chances of contexts of one length, from their counts and the chances after the shorter ones."""
    sorting = np.lexsort((next_ids, keys))
    keys, shorter_keys, next_ids = keys[sorting], shorter_keys[sorting], next_ids[sorting]
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = (keys[1:] != keys[:-1]) | (next_ids[1:] != next_ids[:-1])
    rows = np.flatnonzero(is_new)
    counts = np.diff(np.append(rows, len(keys)))
    keys, shorter_keys, next_ids = keys[rows], shorter_keys[rows], next_ids[rows]
    contexts, begin, kinds = np.unique(keys, return_index=True, return_counts=True)
    seen = np.add.reduceat(counts, begin) if len(begin) else counts
    enough = seen >= least_seen
    of_row = np.repeat(np.arange(len(contexts)), kinds)
    weight = seen / (seen + _NOVELTY * kinds)
    own = enough[of_row]
    row_keys, row_ids = keys[own], next_ids[own]
    row_chances = (weight[of_row] * counts / seen[of_row])[own]
    parts = [(row_keys, row_ids, row_chances)]
    if len(shorter.keys):  # what the shorter context expects, less sure
        wanted, parent = contexts[enough], shorter_keys[begin][enough]
        left, right = np.searchsorted(shorter.keys, parent, "left"), np.searchsorted(shorter.keys, parent, "right")
        sizes = right - left
        inherited = np.repeat(left - np.append(0, np.cumsum(sizes)[:-1]), sizes) + np.arange(sizes.sum())
        factor = np.repeat(1 - weight[enough], sizes)
        parts.append((np.repeat(wanted, sizes), shorter.ids[inherited], factor * shorter.chances[inherited]))
    return _summed(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _summed(keys: UInt64[np.ndarray, " n"], ids: Int[np.ndarray, " n"], chances: Float[np.ndarray, " n"]) -> _Lists:
    """Chances of the same continuation added; the likeliest few of each context, likeliest first."""
    sorting = np.lexsort((ids, keys))
    keys, ids, chances = keys[sorting], ids[sorting], chances[sorting]
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = (keys[1:] != keys[:-1]) | (ids[1:] != ids[:-1])
    rows = np.flatnonzero(is_new)
    chances = np.add.reduceat(chances, rows) if len(rows) else chances
    return _likeliest(_Lists(keys[rows], ids[rows], chances), _KEPT, _KEPT_CHANCE)


def _likeliest(lists: _Lists, most: int, least_chance: float) -> _Lists:
    sorting = np.lexsort((lists.ids, -lists.chances, lists.keys))
    keys, ids, chances = lists.keys[sorting], lists.ids[sorting], lists.chances[sorting]
    rank = np.arange(len(keys)) - np.searchsorted(keys, keys, "left")
    keep = (rank < most) & (chances >= least_chance)
    return _Lists(keys[keep], ids[keep], chances[keep])


def _parents(
    lists: _Lists, keys: UInt64[np.ndarray, " n"], shorter_keys: UInt64[np.ndarray, " n"]
) -> UInt64[np.ndarray, " rows"]:
    """For each row, the key of the context without its first token."""
    contexts, first = np.unique(keys, return_index=True)
    return shorter_keys[first][np.searchsorted(contexts, lists.keys)]


def _told_anew(lists: _Lists, parents: UInt64[np.ndarray, " rows"], shorter: _Lists) -> _Lists:
    """The contexts that say something else than the shorter ones."""
    # The chance that the shorter context gives each row's token, if it names it.
    pair = next_keys(parents, lists.ids)
    shorter_pair = next_keys(shorter.keys, shorter.ids)
    sorting = np.argsort(shorter_pair)
    place = np.minimum(np.searchsorted(shorter_pair[sorting], pair), max(len(sorting) - 1, 0))
    found = shorter_pair[sorting][place] == pair if len(sorting) else np.zeros(len(pair), dtype=bool)
    thought = np.where(found, shorter.chances[sorting][place] if len(sorting) else 0.0, 0.0)
    differs = np.abs(lists.chances - thought) >= _SAME
    says_more = np.isin(lists.keys, lists.keys[differs])
    return _Lists(lists.keys[says_more], lists.ids[says_more], lists.chances[says_more])


def _table(kept: Sequence[_Lists], order: int, vocab_size: int) -> NgramTable:
    whole = _Lists(*(np.concatenate([getattr(part, name) for part in kept]) for name in ("keys", "ids", "chances")))
    saved = _likeliest(whole, _SAVED, _SAVED_CHANCE)
    keys, counts = np.unique(saved.keys, return_counts=True)
    small = vocab_size <= 1 << 16
    return NgramTable(
        order,
        keys,
        counts.astype(np.uint8),
        saved.ids.astype(np.uint16 if small else np.uint32),
        np.clip(np.rint(saved.chances * SCALE), 1, SCALE).astype(np.uint8),
    )
