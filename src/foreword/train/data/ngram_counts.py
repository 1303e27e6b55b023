"""From answers to a table of n-grams: counted, and each context's probabilities interpolated with those of the shorter one [witten91].

    chance(w | context) = a c(context w) / n + (1 - a) chance(w | context without its first token)
    a = n / (n + 3 t)          n: times the context was seen, t: different tokens that followed it

The 3, and how often a context must have been seen to count, were fitted on answers to prompts of other kinds than those counted.
All is arrays, a row for each (context, token): millions of counts are sorted, not kept in dictionaries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from foreword.draft.lookup.ngram_table import SCALE, NgramTable, next_keys

_NOVELTY = 3.0
_LEAST_SEEN = 2  # of contexts of two tokens or more
_KEPT, _KEPT_CHANCE = 8, 0.02  # of a shorter context's continuations, those that a longer one inherits
_SAVED, _SAVED_CHANCE = 4, 0.06
_SAME = 0.04  # a context whose chances all differ from the shorter one's by less is left out


@dataclass(frozen=True)
class _Lists:
    """What may follow contexts: rows sorted by context, most probable first within one."""

    keys: UInt64[np.ndarray, " rows"]
    ids: Int[np.ndarray, " rows"]
    chances: Float[np.ndarray, " rows"]

    def where(self, chosen: Any) -> "_Lists":
        return _Lists(self.keys[chosen], self.ids[chosen], self.chances[chosen])


@dataclass(frozen=True)
class _Places:
    """Where something was said: the tokens, and the contexts before them, whole and without their first token."""

    next_ids: Int[np.ndarray, " places"]
    keys: UInt64[np.ndarray, " places"]
    shorter_keys: UInt64[np.ndarray, " places"]


def count_ngrams(texts: Sequence[Sequence[int]], prompt_lens: Sequence[int], order: int, vocab_size: int) -> NgramTable:
    """The table of what follows contexts of up to `order` tokens in the answers (texts from `prompt_lens` on)."""
    if not texts:
        return NgramTable.empty(order)
    tokens = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
    lengths = np.asarray([len(text) for text in texts])
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)  # where each token's text begins
    place = np.arange(len(tokens))
    said = place[place >= begins + np.repeat(np.asarray(prompt_lens), lengths)]
    keys = np.zeros(len(said), dtype=np.uint64)
    lists, found = _nothing(), []
    for length in range(1, order + 1):
        is_whole = said - length >= begins[said]
        said, shorter_keys = said[is_whole], keys[is_whole]
        keys = next_keys(shorter_keys, tokens[said - length])
        places, shorter = _Places(tokens[said], keys, shorter_keys), lists
        lists = _mixed(places, shorter, _LEAST_SEEN if length > 1 else 1)
        found.append(lists.where(_says_more(lists, places, shorter)))
    return _table(found, order, vocab_size)


def _mixed(places: _Places, shorter: _Lists, least_seen: int) -> _Lists:
    """The chances after contexts of one length, from their counts and the chances after the shorter ones."""
    sorting = np.lexsort((places.next_ids, places.keys))
    keys, next_ids = places.keys[sorting], places.next_ids[sorting]
    rows = np.flatnonzero(_is_new(keys, next_ids))
    counts = np.diff(np.append(rows, len(keys)))
    contexts, first, kinds = np.unique(keys[rows], return_index=True, return_counts=True)
    seen = np.add.reduceat(counts, first) if len(first) else counts
    weight, counted = seen / (seen + _NOVELTY * kinds), seen >= least_seen
    context = np.repeat(np.arange(len(contexts)), kinds)  # of each row
    own = _Lists(keys[rows], next_ids[rows], weight[context] * counts / seen[context]).where(counted[context])
    shorter_keys = places.shorter_keys[sorting][rows][first]
    inherited = _inherited(contexts[counted], shorter_keys[counted], 1 - weight[counted], shorter)
    return _summed(own, inherited)


def _inherited(
    keys: UInt64[np.ndarray, " contexts"],
    shorter_keys: UInt64[np.ndarray, " contexts"],
    share: Float[np.ndarray, " contexts"],
    shorter: _Lists,
) -> _Lists:
    """A share of the chances after the shorter contexts."""
    first = np.searchsorted(shorter.keys, shorter_keys, "left")
    sizes = np.searchsorted(shorter.keys, shorter_keys, "right") - first
    row = np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    return _Lists(np.repeat(keys, sizes), shorter.ids[row], np.repeat(share, sizes) * shorter.chances[row])


def _summed(own: _Lists, inherited: _Lists) -> _Lists:
    """Both chances of the same continuation added; the most probable few of each context."""
    both = _joined([own, inherited])
    both = both.where(np.lexsort((both.ids, both.keys)))
    rows = np.flatnonzero(_is_new(both.keys, both.ids))
    sums = np.add.reduceat(both.chances, rows) if len(rows) else both.chances
    return _likeliest(_Lists(both.keys[rows], both.ids[rows], sums), _KEPT, _KEPT_CHANCE)


def _likeliest(lists: _Lists, most: int, least_chance: float) -> _Lists:
    lists = lists.where(np.lexsort((lists.ids, -lists.chances, lists.keys)))
    rank = np.arange(len(lists.keys)) - np.searchsorted(lists.keys, lists.keys, "left")
    return lists.where((rank < most) & (lists.chances >= least_chance))


def _says_more(lists: _Lists, places: _Places, shorter: _Lists) -> Bool[np.ndarray, " rows"]:
    """The rows of contexts that say something else than the shorter ones."""
    contexts, first = np.unique(places.keys, return_index=True)
    shorter_keys = places.shorter_keys[first][np.searchsorted(contexts, lists.keys)]
    pairs, known = next_keys(shorter_keys, lists.ids), next_keys(shorter.keys, shorter.ids)
    sorting = np.argsort(known)
    known, chances = np.append(known[sorting], pairs[:1]), np.append(shorter.chances[sorting], 0.0)  # one for the end
    row = np.searchsorted(known[: len(sorting)], pairs)
    thought = np.where(known[row] == pairs, chances[row], 0.0)
    differs = np.abs(lists.chances - thought) >= _SAME
    return np.isin(lists.keys, lists.keys[differs])


def _table(found: Sequence[_Lists], order: int, vocab_size: int) -> NgramTable:
    saved = _likeliest(_joined(found), _SAVED, _SAVED_CHANCE)
    keys, counts = np.unique(saved.keys, return_counts=True)
    return NgramTable(
        order,
        keys,
        counts.astype(np.uint8),
        saved.ids.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32),
        np.clip(np.rint(saved.chances * SCALE), 1, SCALE).astype(np.uint8),
    )


def _nothing() -> _Lists:
    return _Lists(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), np.zeros(0))


def _joined(lists: Sequence[_Lists]) -> _Lists:
    return _Lists(*(np.concatenate([getattr(one, name) for one in lists]) for name in ("keys", "ids", "chances")))


def _is_new(keys: UInt64[np.ndarray, " rows"], ids: Int[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Whether a row is another than the one before it."""
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = (keys[1:] != keys[:-1]) | (ids[1:] != ids[:-1])
    return is_new
