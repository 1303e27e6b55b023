"""The regions of the key-value cache by what they hold, so that a prompt's beginning is not read again.

Every region is known, those of running requests with what has been read so far. Those of finished requests stay for a
while; of these the one used longest ago leaves first.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foreword.engine.prefix_tree import PrefixTree
from foreword.engine.request import Request
from foreword.runtime.base import KVCache


@dataclass(eq=False)
class Region:
    """A request's rows in the cache: those of `token_ids[:num_held]`."""

    slot: int
    capacity: int
    token_ids: Sequence[int]
    prompt_len: int
    request: Request | None  # that runs on it; None once it has finished
    num_rows: int = 0  # of a finished request
    used_ns: int = 0  # when it finished, since the epoch
    num_saved: int = 0  # blocks of rows that were saved to the disk
    is_saved: bool = False  # all were

    @property
    def num_held(self) -> int:
        """Rows that are committed."""
        return self.num_rows if self.request is None else self.request.kv_len


@dataclass(frozen=True)
class Match:
    """The region that shares the longest beginning with a prompt."""

    region: Region
    length: int

    @property
    def goes_on(self) -> bool:
        """Whether the prompt continues what the region holds: all of it, or its prompt and a part of its answer."""
        region = self.region
        return region.request is None and (self.length == region.num_held or self.length > region.prompt_len)


class PrefixCache:
    """Finds regions by their tokens, and keeps those of finished requests.

    Args:
        cache: what the regions are part of.
        max_regions: most regions of finished requests.
        max_bytes: most memory of these; None for no bound.
    """

    def __init__(self, cache: KVCache, max_regions: int, max_bytes: int | None = None) -> None:
        self._cache, self.max_regions, self._max_bytes = cache, max_regions, max_bytes
        self._tree: PrefixTree[Region] = PrefixTree()
        self._idle: dict[Region, None] = {}  # of finished requests, the one used longest ago first
        self.num_evicted = 0

    def __len__(self) -> int:
        """Regions of finished requests."""
        return len(self._idle)

    @property
    def num_bytes(self) -> int:
        """Memory of the regions of finished requests."""
        return sum(self._cache.region_bytes(region.capacity) for region in self._idle)

    @property
    def finished(self) -> Iterable[Region]:
        """Regions of finished requests, the one used last first."""
        return reversed(self._idle)

    def find(self, token_ids: Sequence[int], limit: int, running: Iterable[Region]) -> Match | None:
        """The region that shares the longest beginning with `token_ids[:limit]`: a finished one before a running one."""
        for region in running:
            self._tree.update(region)
        regions, length = self._tree.longest(token_ids, limit)
        if length == 0:
            return None
        best = max(regions, key=lambda region: (region.request is None, -region.num_held))
        if best in self._idle:
            self._idle[best] = self._idle.pop(best)  # used just now
        return Match(best, length)

    def forget(self, region: Region) -> None:
        """It is about to be closed, or to hold other tokens."""
        self._tree.discard(region)
        self._idle.pop(region, None)

    def keep(self, region: Region) -> None:
        """Take over the region of a request that has finished; close it where another one holds all of its rows."""
        assert region.request is not None
        region.num_rows, region.request, region.used_ns = region.request.kv_len, None, time.time_ns()
        self._tree.update(region)
        holders, _ = self._tree.longest(region.token_ids, region.num_rows)
        if region.num_rows == 0 or len(holders) > 1:
            self.forget(region)
            self._cache.close(region.slot)
            return
        self._idle[region] = None
        while len(self._idle) > self.max_regions or (self._max_bytes is not None and self.num_bytes > self._max_bytes):
            self.evict()

    def evict(self, spared: Region | None = None) -> bool:
        """Close the region used longest ago, but not `spared`; False where there is none."""
        region = next((region for region in self._idle if region is not spared), None)
        if region is None:
            return False
        self.forget(region)
        self._cache.close(region.slot)
        self.num_evicted += 1
        return True
