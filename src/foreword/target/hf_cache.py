"""Keys and values of many requests for a transformers model.

A region holds a pair of tensors a layer, (kv_heads, capacity, dim), allocated when the layer first writes: its shape is
the layer's own business (grouped heads, keys and values of different widths, layers that keep none).

    rows   [0, length)                         committed
           [length, length + num_scratch)      the pass under way, one row a node
           [length + num_scratch, capacity)    free

A pass sees all its requests as one row of keys: the committed rows of each request, then the nodes of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from foreword.errors import CapacityError, UnsupportedModelError
from foreword.tree.pack import PackedBatch


@dataclass(eq=False)
class Region:
    """One request's rows, a pair of tensors for each layer that has written."""

    capacity: int
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    length: int = 0
    num_scratch: int = 0

    def write(self, layer: int, keys: Float[Tensor, "heads n dim"], values: Float[Tensor, "heads n dim"]) -> None:
        """Fill the scratch rows of a layer."""
        if layer not in self.layers:
            self.layers[layer] = (_allocate(keys, self.capacity), _allocate(values, self.capacity))
        for stored, new in zip(self.layers[layer], (keys, values), strict=True):
            stored[:, self.length : self.length + self.num_scratch].copy_(new)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` rows, keeping what is held."""
        held = self.length + self.num_scratch
        for layer, pair in self.layers.items():
            grown = tuple(_allocate(old, capacity) for old in pair)
            for old, new in zip(pair, grown, strict=True):
                new[:, :held].copy_(old[:, :held])
            self.layers[layer] = (grown[0], grown[1])
        self.capacity = capacity

    def move(self, path: Sequence[int]) -> None:
        """Gather the scratch rows `path` behind the committed ones; those in place already stay."""
        num_placed = next((row for row, node in enumerate(path) if row != node), len(path))
        if num_placed == len(path):
            return
        sources = [self.length + node for node in path[num_placed:]]
        for pair in self.layers.values():
            for rows in pair:
                moved = rows.index_select(1, torch.tensor(sources, device=rows.device))
                rows[:, self.length + num_placed : self.length + len(path)].copy_(moved)


class HFCache:
    """`KVCache` of runtime/base.py."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}

    def open(self, capacity: int) -> int:
        """Reserve a region of at least `capacity` rows; returns its slot, the lowest that is free."""
        slot = next(number for number in range(len(self._regions) + 1) if number not in self._regions)
        self._regions[slot] = Region(capacity)
        return slot

    def close(self, slot: int) -> None:
        """Free the region."""
        self._region(slot)
        del self._regions[slot]

    def reserve(self, slot: int, capacity: int) -> None:
        """Make the region at least `capacity` rows long, keeping what it holds; by half at least, if it grows."""
        region = self._region(slot)
        if capacity > region.capacity:
            region.grow(max(capacity, region.capacity * 3 // 2))

    def length(self, slot: int) -> int:
        """Committed positions."""
        return self._region(slot).length

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the scratch rows `path` (ascending node numbers), in that order; drop the rest."""
        region = self._region(slot)
        ascending = all(before < after for before, after in zip(path, path[1:], strict=False))
        assert ascending, f"path {list(path)} of slot {slot} is not ascending"
        in_range = not path or (path[0] >= 0 and path[-1] < region.num_scratch)
        assert in_range, f"path {list(path)} of slot {slot} leaves the {region.num_scratch} scratch rows"
        region.move(path)
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
        """Copies of the committed keys and values, float32, of the layers that keep some; they must be of one shape."""
        region = self._region(slot)
        pairs = [region.layers[layer] for layer in sorted(region.layers)]
        keys, values = (
            torch.stack([pair[part][:, : region.length].to("cpu", torch.float32, copy=True) for pair in pairs])
            for part in (0, 1)
        )
        return keys, values

    @property
    def num_open(self) -> int:
        """Regions in use."""
        return len(self._regions)

    @property
    def num_bytes(self) -> int:
        """Memory that the regions take."""
        regions = self._regions.values()
        return sum(rows.nbytes for region in regions for pair in region.layers.values() for rows in pair)

    def begin_pass(self, batch: PackedBatch, num_layers: int) -> "PassCache":
        """Claim scratch for all nodes; what the model is given as its cache."""
        regions = [self._region(slot) for slot in batch.slots]
        for slot, region, first, end in zip(batch.slots, regions, batch.starts, batch.starts[1:], strict=False):
            rows = region.length + end - first
            if rows > region.capacity:
                raise CapacityError(
                    f"slot {slot} holds {region.length} of {region.capacity} rows; {end - first} nodes do not fit; "
                    f"reserve {rows} rows before the pass"
                )
            region.num_scratch = end - first
        return PassCache(regions, batch.starts, num_layers)

    def _region(self, slot: int) -> Region:
        assert slot in self._regions, f"slot {slot} is not open; open slots: {sorted(self._regions)}"
        return self._regions[slot]


class PassCache(Cache):
    """What the model takes for its cache during one pass."""

    def __init__(self, regions: Sequence[Region], starts: Sequence[int], num_layers: int) -> None:
        super().__init__(layers=[_PassLayer(index, regions, starts) for index in range(num_layers)])


class _PassLayer(CacheLayerMixin):
    """One layer of the regions of a pass."""

    is_sliding = False

    def __init__(self, index: int, regions: Sequence[Region], starts: Sequence[int]) -> None:
        super().__init__()
        self._index, self._regions, self._starts = index, regions, starts
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Regions allocate by themselves."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Float[Tensor, "1 heads total dim"], Float[Tensor, "1 heads total dim"]]:
        """Store the nodes' keys and values; returns all that the pass may read."""
        for new in (key_states, value_states):
            if new.ndim != 4 or new.shape[0] != 1 or new.shape[2] != self._starts[-1]:
                raise UnsupportedModelError(
                    f"layer {self._index} caches a tensor of shape {tuple(new.shape)} for {self._starts[-1]} tokens; "
                    f"supported: (1, heads, tokens, dim)"
                )
        for region, first, end in zip(self._regions, self._starts, self._starts[1:], strict=False):
            region.write(self._index, key_states[0, :, first:end], value_states[0, :, first:end])
        self.keys, self.values = self._readable(0, key_states), self._readable(1, value_states)
        return self.keys, self.values

    def _readable(self, part: int, new: Tensor) -> Float[Tensor, "1 heads total dim"]:
        """The committed rows of all requests, then the nodes of all; a view where there is one request."""
        stored = [region.layers[self._index][part] for region in self._regions]
        if len(stored) == 1:
            return stored[0][None, :, : self._regions[0].length + self._starts[-1]]
        committed = [rows[None, :, : region.length] for rows, region in zip(stored, self._regions, strict=True)]
        return torch.cat([*committed, new], dim=2)

    def get_seq_length(self) -> int:
        """Rows before those of the pass, of all its requests."""
        return sum(region.length for region in self._regions)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys and the first one's number."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1


def _allocate(like: Float[Tensor, "heads n dim"], capacity: int) -> Float[Tensor, "heads capacity dim"]:
    shape = (like.shape[0], capacity, like.shape[2])
    try:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    except RuntimeError as error:  # torch's out-of-memory errors are RuntimeErrors
        raise CapacityError(
            f"a key-value cache of {capacity} positions could not be allocated on {like.device}; use a smaller batch or "
            f"a shorter context"
        ) from error
