"""Slots and rows of a cache whose regions are torch tensors; the storage layout is private to each region.

rows   [0, length)                         committed
       [length, length + num_scratch)      the pass under way, one row per node
       [length + num_scratch, capacity)    free
"""

from collections.abc import Sequence
from typing import Generic, Protocol, Self, TypeVar

from foreword.errors import CapacityError


class Region(Protocol):
    """One request's rows."""

    length: int
    num_scratch: int

    @property
    def capacity(self) -> int:
        """Rows there is memory for."""
        ...

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` rows, keeping the committed ones and the scratch."""
        ...

    def move(self, first: int, sources: list[int]) -> None:
        """Copy the rows `sources` to `first` and on; they may overlap."""
        ...

    def copy_rows(self, other: Self, length: int) -> None:
        """Copy the first `length` rows of another region to the first rows of this one."""
        ...


R = TypeVar("R", bound=Region)


class RegionCache(Generic[R]):
    """What the caches of requests have in common (`KVCache` of runtime/base.py); they say how a region is made."""

    def __init__(self) -> None:
        self._regions: dict[int, R] = {}

    def _new_region(self, capacity: int) -> R:
        raise NotImplementedError

    def open(self, capacity: int) -> int:
        """Reserve a sequence slot of at least `capacity` rows; returns its number, the lowest that is free."""
        slot = next(number for number in range(len(self._regions) + 1) if number not in self._regions)
        self._regions[slot] = self._new_region(capacity)
        return slot

    def fork(self, slot: int, length: int, capacity: int) -> int:
        """A new region that begins with copies of the first `length` committed rows of `slot`; returns its slot."""
        source = self._region(slot)
        assert 0 <= length <= source.length, f"cannot fork {length} rows of slot {slot}, which holds {source.length}"
        forked = self.open(max(capacity, length))
        region = self._regions[forked]
        try:
            region.copy_rows(source, length)
        except CapacityError:
            self.close(forked)
            raise
        region.length = length
        return forked

    def close(self, slot: int) -> None:
        """Free the slot."""
        self._region(slot)
        del self._regions[slot]

    def reserve(self, slot: int, capacity: int) -> None:
        """Make the slot at least `capacity` rows long, keeping what it holds.

        A region that grows, grows by half at least: a request that reserves a little at every step copies each row only
        a few times in all.
        """
        region = self._region(slot)
        if capacity > region.capacity:
            region.grow(max(capacity, region.capacity * 3 // 2))

    def length(self, slot: int) -> int:
        """Committed positions."""
        return self._region(slot).length

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the scratch rows `path` (ascending node numbers), in that order; drop the rest.

        Rows that are already in place stay where they are: a path of a chain costs nothing.
        """
        region = self._region(slot)
        ascending = all(before < after for before, after in zip(path, path[1:], strict=False))
        assert ascending, f"path {list(path)} of slot {slot} is not ascending"
        in_range = not path or (path[0] >= 0 and path[-1] < region.num_scratch)
        assert in_range, f"path {list(path)} of slot {slot} leaves the {region.num_scratch} scratch rows"
        num_placed = next((row for row, node in enumerate(path) if row != node), len(path))
        if num_placed < len(path):
            region.move(region.length + num_placed, [region.length + node for node in path[num_placed:]])
        region.length += len(path)
        region.num_scratch = 0

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed positions from `length` on, and the scratch."""
        region = self._region(slot)
        assert 0 <= length <= region.length, f"cannot truncate slot {slot} of {region.length} rows to {length}"
        region.length = length
        region.num_scratch = 0

    @property
    def num_open(self) -> int:
        """Slots in use."""
        return len(self._regions)

    def _claim(self, slot: int, num_nodes: int) -> R:
        """The region, with scratch for the nodes of a pass."""
        region = self._region(slot)
        if region.length + num_nodes > region.capacity:
            raise CapacityError(
                f"slot {slot} holds {region.length} of {region.capacity} rows; {num_nodes} nodes do not fit; "
                f"reserve {region.length + num_nodes} rows before the pass"
            )
        region.num_scratch = num_nodes
        return region

    def _region(self, slot: int) -> R:
        assert slot in self._regions, f"slot {slot} is not open; open slots: {sorted(self._regions)}"
        return self._regions[slot]
