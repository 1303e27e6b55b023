"""Memory for keys and values: admission, prefix reuse, growth and preemption.

    begin     a request continues a finished region, copies the prefix that another region holds, or gets an empty region
    load      what the disk has beyond that
    wait      while another request is reading a prefix that both share, or while memory is short
    grow      before a pass; regions of finished requests are evicted where memory is short
    preempt   the request admitted last, where evicting is not enough: it is queued again and read again

The budget bounds what is held between passes. A region that grows is copied, so for that moment it is there twice.
"""

from bisect import bisect_right
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TypeVar

from foreword.engine.disk_prefixes import DiskPrefixes
from foreword.engine.kv_budget import KVBudget
from foreword.engine.prefix_cache import Match, PrefixCache, Region
from foreword.engine.prefix_tree import BLOCK
from foreword.engine.request import Request
from foreword.errors import CapacityError
from foreword.runtime.base import KVCache
from foreword.tree.shared_beginning import num_shared

T = TypeVar("T")
FIRST_ROWS = 512  # rows of a new region beyond the tokens that are known; it grows when needed


class Outcome(Enum):
    """What became of a request that wants to begin."""

    BEGUN = "begun"
    SHARES = "shares"  # another one is just reading what both begin with
    FULL = "full"  # memory is short


class KVMemory:
    """Gives requests their regions of one cache.

    Args:
        cache: the target's.
        budget: what they may take.
        disk: what keeps prefixes beyond the process; None where nothing does.
    """

    def __init__(self, cache: KVCache, budget: KVBudget, disk: DiskPrefixes | None = None) -> None:
        self._cache, self.budget = cache, budget
        self.disk = disk if budget.max_finished else None
        self.first_rows = FIRST_ROWS
        self.prefixes = PrefixCache(cache, budget.max_finished, budget.finished_bytes)
        self.num_copied = 0  # regions that began as a copy
        self.num_preempted = 0
        self._regions: dict[int, Region] = {}  # of running requests, by slot

    def begin(self, request: Request) -> Outcome:
        """Give a request a region that holds as much of its tokens as can be found.

        Raises:
            CapacityError: it would not fit even alone.
        """
        match = None
        looks = bool(self.budget.max_finished) and request.params.prompt_logprobs is None
        if looks:
            limit = len(request.token_ids) - 1  # the last token is always read: the next one is drawn after it
            match = self.prefixes.find(request.token_ids, limit, self._regions.values())
            if self._is_being_read(request, match.length if match else 0):
                return Outcome.SHARES
        region = self._region(request, match)
        if region is None:
            return Outcome.FULL
        self._regions[region.slot] = region
        request.slot, request.kv_len = region.slot, self._cache.length(region.slot)
        if self.disk is not None and looks:
            self.disk.look(request)
        if not request.was_preempted:
            request.stats.cached_tokens = request.kv_len
        return Outcome.BEGUN

    def is_loading(self, request: Request) -> bool:
        """Whether a request waits for rows that the disk has."""
        return self.disk is not None and self.disk.is_loading(request)

    def load(self, request: Request) -> None:
        """Load some of these rows."""
        assert self.disk is not None
        self.disk.load(request, self.reserve)
        if not request.was_preempted:
            request.stats.cached_tokens = request.kv_len

    def save(self, *, is_idle: bool) -> bool:
        """Save some rows of finished requests to the disk, if it is time to; False where nothing was done."""
        return self.disk is not None and self.disk.save(self.prefixes.finished, is_idle=is_idle)

    def end(self, request: Request, *, keeps: bool) -> None:
        """Take a request's region back; `keeps`: for requests to come."""
        region = self._regions.pop(request.slot)
        if self.disk is not None:
            self.disk.forget(request)
        if keeps and self.budget.max_finished:
            self.prefixes.keep(region)
        else:
            self.prefixes.forget(region)
            self._cache.close(region.slot)
        request.slot = -1

    def preempt(self, request: Request) -> None:
        """Take a running request's region away; its prompt and output so far are to be read again."""
        self.end(request, keeps=False)
        request.restart()
        self.num_preempted += 1

    def reserve(self, slot: int, capacity: int) -> None:
        """Make a region at least `capacity` rows long; where there is no room, finished ones make way.

        Raises:
            CapacityError: there is no room; the region is as it was.
        """
        region = self._regions.get(slot)
        if region is None:  # of somebody who measures passes
            self._cache.reserve(slot, capacity)
        elif capacity > region.capacity:
            grown = max(capacity, region.capacity * 3 // 2)  # as the caches do, so that each row is copied a few times
            extra = self._cache.region_bytes(grown) - self._cache.region_bytes(region.capacity)
            self._with_room(extra, partial(self._cache.reserve, slot, grown))
            region.capacity = grown

    def widen(self, request: Request) -> bool:
        """Give a request that runs alone all rows that there may be; False where it has them already."""
        region = self._regions[request.slot]
        rows = self._most_rows(request.max_len + FIRST_ROWS)
        if self.budget.total_bytes is None or rows <= region.capacity:
            return False
        try:
            slot = self._cache.fork(region.slot, request.kv_len, rows)
        except CapacityError:
            return False
        self._cache.close(region.slot)
        del self._regions[region.slot]
        region.slot, region.capacity = slot, rows
        self._regions[slot], request.slot = region, slot
        return True

    def close(self, *, saves: bool = True) -> None:
        """Free the regions of finished requests; `saves`: to the disk what is not there."""
        if self.disk is not None and saves:
            self.disk.finish(self.prefixes.finished)
        while self.prefixes.evict():
            pass

    @property
    def num_bytes(self) -> int:
        """Memory of all regions."""
        return self._cache.num_bytes

    def _is_being_read(self, request: Request, num_found: int) -> bool:
        """Whether a running request is reading its prompt and will soon hold more of this one's than is there now."""
        for region in self._regions.values():
            other = region.request
            if other is not None and other.is_prefilling:
                shared = num_shared(request.token_ids[:-1], other.token_ids)
                if shared - num_found >= BLOCK:
                    return True
        return False

    def _region(self, request: Request, match: Match | None) -> Region | None:
        """A region for a request; None where it has to wait until another one ends."""
        if match is not None and match.goes_on:
            return self._taken_over(request, match)
        copied = match if match is not None and match.length >= BLOCK else None  # less is read as fast as copied
        rows = min(request.max_len, len(request.token_ids) + self.first_rows)
        try:
            slot = self._new(rows, copied)
        except CapacityError as error:
            if copied is not None and copied.region.request is None:
                return self._taken_over(request, copied)
            if self._regions:
                return None
            rows, fewest = self._most_rows(rows), len(request.token_ids)
            if rows < fewest:
                raise CapacityError(
                    f"a request of {fewest} tokens needs {_mebibytes(self._cache.region_bytes(fewest))} of keys and "
                    f"values, and they may take {_mebibytes(self.budget.total_bytes or 0)} (kv_cache_bytes); "
                    "allow more, or shorten the prompt"
                ) from error
            slot = self._new(rows, None)
        return self._of(request, slot, rows)

    def _new(self, rows: int, copied: Match | None) -> int:
        """The slot of a new region, with what is copied from another one."""
        need = self._cache.region_bytes(rows)
        if copied is None:
            return self._with_room(need, partial(self._cache.open, rows))
        fork = partial(self._cache.fork, copied.region.slot, copied.length, rows)
        slot = self._with_room(need, fork, spared=copied.region)
        self.num_copied += 1
        return slot

    def _taken_over(self, request: Request, match: Match) -> Region:
        """A finished region as it is, cut to what is shared."""
        region = match.region
        self.prefixes.forget(region)
        self._cache.truncate(region.slot, match.length)
        return self._of(request, region.slot, region.capacity)

    def _of(self, request: Request, slot: int, rows: int) -> Region:
        return Region(slot, rows, request.token_ids, request.prompt_len, request)

    def _with_room(self, num_bytes: int, call: Callable[[], T], spared: Region | None = None) -> T:
        """The call, which takes so much more memory; regions of finished requests make way, one by one."""
        while True:
            try:
                if not self._fits(num_bytes):
                    raise CapacityError(self._shortage(num_bytes))
                return call()
            except CapacityError:
                if not self.prefixes.evict(spared):
                    raise

    def _fits(self, num_bytes: int) -> bool:
        total = self.budget.total_bytes
        return total is None or self._cache.num_bytes + num_bytes <= total

    def _most_rows(self, limit: int) -> int:
        """Rows of the largest region that may be, up to a limit."""
        total = self.budget.total_bytes
        if total is None:
            return limit
        return bisect_right(range(1, limit + 1), total, key=self._cache.region_bytes)

    def _shortage(self, num_bytes: int) -> str:
        return (
            f"{_mebibytes(num_bytes)} more of keys and values do not fit: {_mebibytes(self._cache.num_bytes)} of "
            f"{_mebibytes(self.budget.total_bytes or 0)} (kv_cache_bytes) are taken; allow more, or run fewer requests "
            "side by side"
        )


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
