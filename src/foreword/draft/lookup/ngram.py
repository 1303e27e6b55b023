"""Prompt lookup: the text often continues as it did the last time the same few tokens stood there [saxena23].

The index maps every n-gram of the request's own tokens to where it last ended, and grows with the text: O(1) per token, whatever the
length. The longest match wins. The copy may run into its own end, as in LZ77 [lz77], so that a loop of any period is
drafted to full length.

A request's reference is a second place to copy from: where it agrees with more tokens than the request's own text does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.lookup.reference_text import ReferenceCursor
from foreword.errors import ConfigError
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

LONGEST = 32  # tokens of a match: one that is longer says no more, and every token is looked up at each length


@dataclass(frozen=True, kw_only=True)
class NgramOptions(DrafterOptions):
    """Which matches are looked for."""

    prompt_lookup_max: int = option(3, "longest match looked for, in tokens", lowest=1, highest=LONGEST)
    prompt_lookup_min: int = option(1, "shortest match looked for, in tokens", lowest=1, highest=LONGEST)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max {self.prompt_lookup_max}; "
                f"allowed: 1 <= prompt_lookup_min <= prompt_lookup_max"
            )


@final
class NgramDrafter(BaseDrafter):
    """Copies the continuation of the most recent earlier match of the last n tokens."""

    name = "ngram"
    uses_reference = True

    def __init__(self, options: NgramOptions | None = None) -> None:
        options = options or NgramOptions()
        self.longest, self.shortest = options.prompt_lookup_max, options.prompt_lookup_min
        self._indexes: dict[int, NgramIndex] = {}
        self._cursors: dict[int, ReferenceCursor] = {}

    def start(self, request: RequestView) -> None:
        """Begin an empty index; the prompt enters it with the first proposal."""
        self._indexes[request.request_id] = NgramIndex(self.longest, self.shortest)

    def stop(self, request: RequestView) -> None:
        """Forget the index, and the place in the reference."""
        self._indexes.pop(request.request_id, None)
        self._cursors.pop(request.request_id, None)

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One chain per request; no draft where nothing matches."""
        return [self._chain(r, plan) for r, plan in zip(requests, plans, strict=True)]

    def _chain(self, request: RequestView, plan: Plan) -> DraftTree:
        length = min(plan.num_nodes, plan.depth)
        drafted = self._continuation(request, length) if length > 0 else []
        return DraftTree.chain(known_ids(request, plan), drafted)

    def _continuation(self, request: RequestView, length: int) -> list[int]:
        """Of what follows in the text and in the reference: the longer match; of equal ones the text's."""
        index = self._indexes[request.request_id]
        if not request.reference_ids:
            return index.continuation(request.token_ids, length)
        cursor = self._cursors.get(request.request_id)
        if cursor is None:
            cursor = ReferenceCursor(request.reference_ids, self.longest, self.shortest)
            self._cursors[request.request_id] = cursor
        match_len, following = cursor.continuation(request.token_ids, length)
        own_len, _ = index.match(request.token_ids)
        return following if match_len > own_len else index.continuation(request.token_ids, length)


class NgramIndex:
    """Where each n-gram of a growing token list last ended, for n from `shortest` to `longest`."""

    def __init__(self, longest: int, shortest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed_len = 0

    def continuation(self, token_ids: Sequence[int], length: int) -> list[int]:
        """What followed the most recent earlier match of the longest suffix; empty if none matches."""
        match_len, end = self.match(token_ids)
        return _copy_from(token_ids, end, length) if match_len else []

    def match(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Length of the longest suffix that stood there before, and where it last ended; 0 and 0 if there is none."""
        self._extend(token_ids)
        for n in self._sizes:
            end = self._ends.get(tuple(token_ids[-n:])) if n <= len(token_ids) else None
            if end is not None:
                return n, end
        return 0, 0

    def _extend(self, token_ids: Sequence[int]) -> None:
        """Index the n-grams that have a continuation: those that end before the last token."""
        for end in range(self._indexed_len + 1, len(token_ids)):
            for n in self._sizes:
                if n <= end:
                    self._ends[tuple(token_ids[end - n : end])] = end
        self._indexed_len = max(self._indexed_len, len(token_ids) - 1)


def _copy_from(token_ids: Sequence[int], start: int, length: int) -> list[int]:
    """`length` tokens from `start` on; past the end the copy continues with what it has just copied."""
    copied = list(token_ids[start : start + length])
    period = len(token_ids) - start
    while len(copied) < length:
        copied.append(copied[len(copied) - period])
    return copied


def make(settings: DrafterSettings, target: Target) -> NgramDrafter:
    """Needs nothing of the target."""
    return NgramDrafter(settings.options)


NGRAM = DrafterType(
    name="ngram",
    summary="prompt lookup: copies the continuation of the last matching n-gram in prompt or output",
    fits="edits, code, summaries: text that copies",
    make=make,
    options=NgramOptions,
)
