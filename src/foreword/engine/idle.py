"""Cache regions of finished conversations, kept for their continuation."""

from collections.abc import Sequence
from dataclasses import dataclass

from foreword.engine.request import Request
from foreword.runtime.base import KVCache


@dataclass(frozen=True)
class _Region:
    slot: int
    token_ids: list[int]  # what its rows hold
    prompt_len: int


class IdleRegions:
    """At most `capacity` regions; the one that was finished longest ago goes first.

    A region serves a prompt that repeats all of its own prompt and at least one token of its answer: the next turn of
    the same chat. Asking the same question anew reads the prompt anew, so that the same call does the same passes.
    """

    def __init__(self, cache: KVCache, capacity: int) -> None:
        self._cache, self._capacity = cache, capacity
        self._regions: list[_Region] = []

    def __len__(self) -> int:
        return len(self._regions)

    def keep(self, request: Request) -> bool:
        """Take over a finished request's region; False if none are kept."""
        if self._capacity == 0 or request.kv_len <= request.prompt_len:
            return False
        self._regions.append(_Region(request.slot, request.token_ids[: request.kv_len], request.prompt_len))
        while len(self._regions) > self._capacity:
            self._cache.close(self._regions.pop(0).slot)
        return True

    def take(self, prompt_ids: Sequence[int]) -> tuple[int, int] | None:
        """The region that holds most of a prompt, cut to what they share: (slot, rows).

        The prompt's last token stays unread in any case, since the first token of the answer is drawn after it.
        """
        best, best_len = None, 0
        for region in self._regions:
            length = min(_num_shared(region.token_ids, prompt_ids), len(prompt_ids) - 1)
            if length > max(best_len, region.prompt_len):
                best, best_len = region, length
        if best is None:
            return None
        self._regions.remove(best)
        self._cache.truncate(best.slot, best_len)
        return best.slot, best_len

    def clear(self) -> None:
        """Free all."""
        while self._regions:
            self._cache.close(self._regions.pop().slot)


def _num_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest start that two sequences share."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
