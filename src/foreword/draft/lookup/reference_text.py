"""Follows the position of a text in a reference that it resembles, such as the file that is being edited.

    reference   a b c d e f g b c h         the answer so far   ... a b X d
    followed      ↑ a, b agree; X does not: the place is lost, but remembered
    found again   d: the occurrence nearest after the remembered place; e f g is what may come next

A reference says the same things in many places, so the last occurrence of a few tokens is seldom the right one. Edits
keep the order: after a difference the answer goes on a little further down.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import final


@final
class ReferenceCursor:
    """Follows a growing text through its reference: O(1) per token, whatever the lengths.

    Args:
        reference: token ids.
        longest: n-grams looked up when the place is lost; so many tokens in agreement confirm a place.
        shortest: the shortest ones.
    """

    def __init__(self, reference: Sequence[int], longest: int, shortest: int) -> None:
        self._reference = list(reference)
        self._longest = longest
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], list[int]] = {}
        for end in range(1, len(self._reference)):  # n-grams that have a continuation
            for n in self._sizes:
                if n <= end:
                    self._ends.setdefault(tuple(self._reference[end - n : end]), []).append(end)
        self._read_len = 0
        self._place = 0  # of the token that should come next
        self._agreed = 0  # tokens before it that are the text's last ones
        self._anchor = 0  # the last place that was confirmed

    def continuation(self, token_ids: Sequence[int], length: int) -> tuple[int, list[int]]:
        """How many of the text's last tokens agree, and up to `length` tokens that follow in the reference."""
        self._follow(token_ids)
        if self._agreed < self._longest:
            self._look_up(token_ids)
        following = self._reference[self._place : self._place + length] if self._agreed else []
        return (self._agreed if following else 0), following

    def _follow(self, token_ids: Sequence[int]) -> None:
        """Move on with the text where it does what the reference does."""
        for token in token_ids[self._read_len :]:
            if self._agreed and self._place < len(self._reference) and self._reference[self._place] == token:
                self._place += 1
                self._agreed += 1
            else:
                self._agreed = 0
            if self._agreed >= self._longest:
                self._anchor = self._place
        self._read_len = len(token_ids)

    def _look_up(self, token_ids: Sequence[int]) -> None:
        """The place after the longest n-gram that the text ends in: the nearest after the anchor, else before it."""
        self._agreed = 0
        for n in self._sizes:
            ends = self._ends.get(tuple(token_ids[-n:])) if n <= len(token_ids) else None
            if ends:
                self._place = ends[min(bisect_left(ends, self._anchor), len(ends) - 1)]
                self._agreed = n
                return
