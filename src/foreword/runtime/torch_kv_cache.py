"""Keys and values of many requests as torch tensors.

A region is one tensor of shape (layers, 2, kv_heads, capacity, head_dim): keys and values of a layer lie together, so
that one copy writes both, and the rows of a head are contiguous, so that attention reads them without a copy.

    rows   [0, length)                         committed
           [length, length + num_scratch)      the pass under way, one row a node
           [length + num_scratch, capacity)    free
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.config import ModelSpec
from foreword.errors import CapacityError


@dataclass(eq=False)
class _Region:
    """One request's rows."""

    values: Float[Tensor, "layers 2 kv_heads capacity dim"]
    length: int = 0
    num_scratch: int = 0

    @property
    def capacity(self) -> int:
        return self.values.shape[3]


@dataclass(frozen=True, eq=False)
class PassRows:
    """Views of one request's rows in a pass, a tensor a layer."""

    new: Sequence[Float[Tensor, "2 kv_heads nodes dim"]]  # where keys and values of the nodes go
    keys: Sequence[Float[Tensor, "1 kv_heads total dim"]]  # committed rows, then those of the nodes
    values: Sequence[Float[Tensor, "1 kv_heads total dim"]]


class TorchKVCache:
    """`KVCache` of runtime/base.py; every layer of a request shares one region."""

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
        self._row_shape = (spec.num_layers, 2, spec.num_kv_heads, spec.head_dim)
        self._device = device
        self._dtype = dtype
        self._regions: dict[int, _Region] = {}

    def open(self, capacity: int) -> int:
        """Reserve a region of at least `capacity` rows; returns its slot, the lowest that is free."""
        slot = next(number for number in range(len(self._regions) + 1) if number not in self._regions)
        self._regions[slot] = _Region(self._allocate(capacity))
        return slot

    def close(self, slot: int) -> None:
        """Free the region."""
        self._region(slot)
        del self._regions[slot]

    def reserve(self, slot: int, capacity: int) -> None:
        """Make the region at least `capacity` rows long, keeping what it holds.

        A region that grows, grows by half at least: a request that reserves a little at every step copies each row only
        a few times in all.
        """
        region = self._region(slot)
        if capacity <= region.capacity:
            return
        held = region.length + region.num_scratch
        grown = self._allocate(max(capacity, region.capacity * 3 // 2))
        grown[:, :, :, :held].copy_(region.values[:, :, :, :held])
        region.values = grown

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
            first = region.length
            sources = torch.tensor([first + node for node in path[num_placed:]], device=self._device)
            moved = region.values.index_select(3, sources)
            region.values[:, :, :, first + num_placed : first + len(path)].copy_(moved)
        region.length += len(path)
        region.num_scratch = 0

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed positions from `length` on, and the scratch."""
        region = self._region(slot)
        assert 0 <= length <= region.length, f"cannot truncate slot {slot} of {region.length} rows to {length}"
        region.length = length
        region.num_scratch = 0

    def rows(
        self, slot: int
    ) -> tuple[Float[Tensor, "layers kv_heads len dim"], Float[Tensor, "layers kv_heads len dim"]]:
        """Copies of the committed keys and values, float32: for tests and integrity checks."""
        region = self._region(slot)
        committed = region.values[:, :, :, : region.length]
        keys, values = committed.to(torch.float32, copy=True).unbind(1)
        return keys, values

    @property
    def num_open(self) -> int:
        """Regions in use."""
        return len(self._regions)

    @property
    def num_bytes(self) -> int:
        """Memory that the regions take."""
        return sum(region.values.nbytes for region in self._regions.values())

    def begin_pass(self, slot: int, num_nodes: int) -> PassRows:
        """Claim scratch for `num_nodes` nodes."""
        region = self._region(slot)
        first, end = region.length, region.length + num_nodes
        if end > region.capacity:
            raise CapacityError(
                f"slot {slot} holds {first} of {region.capacity} rows; {num_nodes} nodes do not fit; "
                f"reserve {end} rows before the pass"
            )
        region.num_scratch = num_nodes
        readable = region.values[:, :, None, :, :end]
        return PassRows(region.values[:, :, :, first:end].unbind(), readable[:, 0].unbind(), readable[:, 1].unbind())

    def _region(self, slot: int) -> _Region:
        assert slot in self._regions, f"slot {slot} is not open; open slots: {sorted(self._regions)}"
        return self._regions[slot]

    def _allocate(self, capacity: int) -> Float[Tensor, "layers 2 kv_heads capacity dim"]:
        num_layers, two, num_kv_heads, head_dim = self._row_shape
        shape = (num_layers, two, num_kv_heads, capacity, head_dim)
        try:
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        except RuntimeError as error:  # torch's out-of-memory errors are RuntimeErrors
            num_bytes = capacity * num_layers * two * num_kv_heads * head_dim * self._dtype.itemsize
            raise CapacityError(
                f"a key-value cache of {capacity} positions takes {num_bytes / 2**20:.0f} MiB, which could not be "
                f"allocated on {self._device}; use a smaller batch or a shorter context"
            ) from error
