"""What followed which tokens in the answers of this engine: a table of fixed size, learned one token at a time.

    row     4 x u32    tag of the context | (token << 8 | strength) x 3
    pair    2 rows     a context stands in either row of the pair that its hash names

A context is the hash of the last 2, 3, 4 or 5 tokens. The strength of a continuation, 1 to 255, is an average that forgets: a
quarter of the way to 255 with each time that the token followed, a quarter of the way to 0 with each time that another did.
Seen once it is 64, four times in a row 174. A fourth continuation takes the place of the weakest one.

A context that finds its pair taken weakens the weaker row by half, the other by an eighth, and takes the weaker one once little is
left of it. So rows that are in use stay and those that are not go. The rows hold hashes and token ids: who has the table can guess at what was said.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt32

from foreword.errors import ConfigError

ORDERS = (2, 3, 4, 5)  # tokens of a context
LONGEST = ORDERS[-1]
BYTES_PER_ROW = 16
LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 32
_TOKEN_BITS = 24
_FACTOR, _MIX = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93  # odd, their bits without a pattern
_MASK = (1 << 64) - 1
_FRESH = 64  # strength of what was seen once
_WEAK = 40  # a row whose strongest continuation is weaker may be taken

Found = tuple[int, int]  # token, strength


class MemoryStore:
    """Continuations by context.

    Args:
        num_bytes: of the table; the largest power of two that is not above it.
        vocab_size: of the model.
    """

    def __init__(self, num_bytes: int, vocab_size: int) -> None:
        if vocab_size > 1 << _TOKEN_BITS:
            raise ConfigError(f"vocab_size is {vocab_size}; a memory holds token ids below {1 << _TOKEN_BITS}")
        row_bits = (num_bytes // BYTES_PER_ROW).bit_length() - 1
        self.rows: UInt32[np.ndarray, "rows 4"] = np.zeros((1 << row_bits, 4), dtype=np.uint32)
        self._shift = 64 - row_bits
        self._at = self.rows.reshape(-1).data  # Python reads and writes single numbers faster there than in the array

    @property
    def num_contexts(self) -> int:
        """Rows that are taken."""
        return int(np.count_nonzero(self.rows[:, 0]))

    def clear(self) -> None:
        """Forget everything."""
        self.rows[:] = 0

    def learn(self, token_ids: Sequence[int], first: int) -> None:
        """Take in the tokens of a text from place `first` on; those before them are context alone."""
        for place in range(max(first, ORDERS[0]), len(token_ids)):
            token = token_ids[place]
            for hashed in context_hashes(token_ids[max(0, place - LONGEST) : place]):
                self._count(hashed, token)

    def after(self, hashed: int) -> tuple[Found, ...]:
        """What followed a context (one of `context_hashes`), as (token, strength); nothing where it is not known."""
        at = self._at
        base = (hashed >> self._shift) << 2
        tag = (hashed & 0xFFFFFFFF) or 1
        if at[base] != tag:
            base ^= 4
            if at[base] != tag:
                return ()
        first, second, third = at[base + 1], at[base + 2], at[base + 3]
        if not second:
            return ((first >> 8, first & 255),)
        if not third:
            return (first >> 8, first & 255), (second >> 8, second & 255)
        return (first >> 8, first & 255), (second >> 8, second & 255), (third >> 8, third & 255)

    def _count(self, hashed: int, token: int) -> None:
        at = self._at
        base = (hashed >> self._shift) << 2
        tag = (hashed & 0xFFFFFFFF) or 1
        if at[base] != tag:
            base ^= 4
            if at[base] != tag:
                self._begin(base, tag, token)
                return
        weakest, least, place = base + 1, 256, 0
        for entry in (base + 1, base + 2, base + 3):
            value = at[entry]
            if not value:
                weakest, least = entry, 0
                break
            strength = value & 255
            if value >> 8 == token:
                at[entry] = value + ((255 - strength) >> 2)
                place = entry
            else:
                strength -= (strength >> 2) or (strength > 1)
                at[entry] = value >> 8 << 8 | strength
                if strength < least:
                    weakest, least = entry, strength
        if not place:
            at[weakest] = token << 8 | _FRESH

    def _begin(self, base: int, tag: int, token: int) -> None:
        """A new context, in the weaker row of its pair."""
        at = self._at
        if at[base]:
            other = base ^ 4
            if not at[other] or _strength(at, other) < _strength(at, base):
                base, other = other, base
            if at[base] and _strength(at, base) > _WEAK:
                _fade(at, base, 1)
                _fade(at, other, 3)
                return
        at[base], at[base + 1], at[base + 2], at[base + 3] = tag, token << 8 | _FRESH, 0, 0


def context_hashes(last_ids: Sequence[int]) -> list[int]:
    """Of the contexts that end with the last of `last_ids`, the shortest first; fewer where there are fewer tokens."""
    key, hashes = 0, []
    for length, token in enumerate(reversed(last_ids), 1):
        key = (key * _FACTOR + token + 1) & _MASK
        if length > 1:
            hashes.append((key ^ key >> 29) * _MIX & _MASK)
    return hashes


def merged(rows: UInt32[np.ndarray, "rows 4"], others: UInt32[np.ndarray, "rows 4"]) -> UInt32[np.ndarray, "rows 4"]:
    """Of two tables of one size, the stronger row of each place, the first one's among equals."""
    return np.where((_strengths(others) > _strengths(rows))[:, None], others, rows)


def _fade(at: memoryview, base: int, shift: int) -> None:
    """Take a half (`shift` 1), a quarter (2), an eighth (3) from the strengths of a row."""
    for entry in (base + 1, base + 2, base + 3):
        if value := at[entry]:
            strength = value & 255
            at[entry] = value - ((strength >> shift) or (strength > 1))


def _strength(at: memoryview, base: int) -> int:
    """Of the strongest continuation of a row."""
    return max(at[base + 1] & 255, at[base + 2] & 255, at[base + 3] & 255)


def _strengths(rows: UInt32[np.ndarray, "rows 4"]) -> UInt32[np.ndarray, " rows"]:
    """Of each row, that of all its continuations."""
    return (rows[:, 1:] & 255).sum(axis=1, dtype=np.uint32)
