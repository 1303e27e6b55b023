"""Keys and values of many requests for a transformers model.

A region holds a pair of tensors per layer, (kv_heads, capacity, dim), allocated when the layer first writes: its shape is
the layer's own business (grouped heads, keys and values of different widths, layers that keep none).

A pass sees all its requests as one row of keys: the committed rows of each request, then the nodes of all of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from foreword.errors import CapacityError, UnsupportedModelError
from foreword.runtime.torch_regions import RegionCache
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

    def move(self, first: int, sources: list[int]) -> None:
        """Copy the rows `sources` to `first` and on."""
        for pair in self.layers.values():
            for rows in pair:
                moved = rows.index_select(1, torch.tensor(sources, device=rows.device))
                rows[:, first : first + len(sources)].copy_(moved)

    def copy_rows(self, other: "Region", length: int) -> None:
        """Copy the first `length` rows of another region, of the layers that it holds."""
        for layer, (keys, values) in other.layers.items():
            self.layers[layer] = (_allocate(keys, self.capacity), _allocate(values, self.capacity))
            for mine, theirs in zip(self.layers[layer], (keys, values), strict=True):
                mine[:, :length].copy_(theirs[:, :length])

    @property
    def row_bytes(self) -> int:
        """Memory of a row over all layers that have written; 0 before any has."""
        return sum(rows.nbytes for pair in self.layers.values() for rows in pair) // max(self.capacity, 1)


class HFCache(RegionCache[Region]):
    """`KVCache` of runtime/base.py."""

    def __init__(self) -> None:
        super().__init__()
        self._row_bytes = 0  # of the widest region seen: what a row takes is known once per pass has written

    def _new_region(self, capacity: int) -> Region:
        return Region(capacity)

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
    def num_bytes(self) -> int:
        """Memory that the regions take or, where a layer has not written yet, will take."""
        return sum(self.region_bytes(region.capacity) for region in self._regions.values())

    def region_bytes(self, capacity: int) -> int:
        """Memory that a region of `capacity` rows takes; 0 before the first pass."""
        return capacity * (self._row_bytes or self._widest(self._regions.values()))

    def _widest(self, regions: Iterable[Region]) -> int:
        self._row_bytes = max([self._row_bytes, *(region.row_bytes for region in regions)])
        return self._row_bytes

    def begin_pass(self, batch: PackedBatch, num_layers: int) -> "PassCache":
        """Claim scratch for all nodes; what the model is given as its cache."""
        ends = zip(batch.slots, batch.starts, batch.starts[1:], strict=False)
        regions = [self._claim(slot, end - first) for slot, first, end in ends]
        self._widest(regions)
        return PassCache(regions, batch.starts, num_layers)


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
