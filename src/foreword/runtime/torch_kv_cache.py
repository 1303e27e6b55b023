"""Keys and values of many requests as torch tensors.

A region is one tensor of shape (layers, 2, kv_heads, capacity, head_dim): keys and values of a layer lie together, so
that one copy writes both, and the rows of a head are contiguous, so that attention reads them without a copy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from foreword.config import ModelSpec
from foreword.errors import CapacityError
from foreword.runtime.torch_regions import RegionCache


@dataclass(eq=False)
class _Region:
    """One request's rows."""

    allocate: Callable[[int], Tensor]
    values: Float[Tensor, "layers 2 kv_heads capacity dim"]
    length: int = 0
    num_scratch: int = 0

    @property
    def capacity(self) -> int:
        return self.values.shape[3]

    def grow(self, capacity: int) -> None:
        held = self.length + self.num_scratch
        grown = self.allocate(capacity)
        grown[:, :, :, :held].copy_(self.values[:, :, :, :held])
        self.values = grown

    def move(self, first: int, sources: list[int]) -> None:
        moved = self.values.index_select(3, torch.tensor(sources, device=self.values.device))
        self.values[:, :, :, first : first + len(sources)].copy_(moved)

    def copy_rows(self, other: "_Region", length: int) -> None:
        self.values[:, :, :, :length].copy_(other.values[:, :, :, :length])


@dataclass(frozen=True, eq=False)
class PassRows:
    """Views of one request's rows in a pass, one tensor per layer."""

    new: Sequence[Float[Tensor, "2 kv_heads nodes dim"]]  # where keys and values of the nodes go
    keys: Sequence[Float[Tensor, "1 kv_heads total dim"]]  # committed rows, then those of the nodes
    values: Sequence[Float[Tensor, "1 kv_heads total dim"]]


class TorchKVCache(RegionCache[_Region]):
    """`KVCache` of runtime/base.py; all layers of a request share one region."""

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self._row_shape = (spec.num_layers, 2, spec.num_kv_heads, spec.head_dim)
        self._device = device
        self._dtype = dtype

    def _new_region(self, capacity: int) -> _Region:
        return _Region(self._allocate, self._allocate(capacity))

    def rows(
        self, slot: int
    ) -> tuple[Float[Tensor, "layers kv_heads len dim"], Float[Tensor, "layers kv_heads len dim"]]:
        """Copies of the committed keys and values, float32: for tests and integrity checks."""
        region = self._region(slot)
        committed = region.values[:, :, :, : region.length]
        keys, values = committed.to(torch.float32, copy=True).unbind(1)
        return keys, values

    @property
    def layout(self) -> str:
        """Torch, and what decides in which order it adds."""
        device = self._device
        name = (
            torch.cuda.get_device_name(device)
            if device.type == "cuda"
            else f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
        )
        return f"torch {torch.__version__} {self._dtype} {device.type} {name}"

    def save_rows(self, slot: int, first: int, count: int) -> UInt8[np.ndarray, " bytes"]:
        """A copy of the committed rows [first, first + count)."""
        region = self._region(slot)
        assert 0 <= first <= first + count <= region.length, f"slot {slot} holds {region.length} rows"
        rows = region.values[:, :, :, first : first + count].to("cpu", copy=True).contiguous()
        return rows.reshape(-1).view(torch.uint8).numpy()

    def load_rows(self, slot: int, rows: UInt8[np.ndarray, " bytes"]) -> None:
        """Commit saved rows behind those that are there."""
        region = self._region(slot)
        num_layers, two, num_kv_heads, head_dim = self._row_shape
        count = len(rows) // self.region_bytes(1)
        assert region.length + count <= region.capacity, f"{count} rows do not fit into slot {slot}"
        values = torch.from_numpy(rows.copy()).view(self._dtype).view(num_layers, two, num_kv_heads, count, head_dim)
        region.values[:, :, :, region.length : region.length + count].copy_(values)
        region.length, region.num_scratch = region.length + count, 0

    @property
    def num_bytes(self) -> int:
        """Memory that the slots take."""
        return sum(region.values.nbytes for region in self._regions.values())

    def region_bytes(self, capacity: int) -> int:
        """Memory that a region of `capacity` rows takes."""
        return capacity * math.prod(self._row_shape) * self._dtype.itemsize

    def begin_pass(self, slot: int, num_nodes: int) -> PassRows:
        """Claim scratch for `num_nodes` nodes."""
        region = self._claim(slot, num_nodes)
        first, end = region.length, region.length + num_nodes
        readable = region.values[:, :, None, :, :end]
        return PassRows(region.values[:, :, :, first:end].unbind(), readable[:, 0].unbind(), readable[:, 1].unbind())

    def _allocate(self, capacity: int) -> Float[Tensor, "layers 2 kv_heads capacity dim"]:
        num_layers, two, num_kv_heads, head_dim = self._row_shape
        shape = (num_layers, two, num_kv_heads, capacity, head_dim)
        try:
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        except RuntimeError as error:  # torch's out-of-memory errors are RuntimeErrors
            num_bytes = self.region_bytes(capacity)
            raise CapacityError(
                f"a key-value cache of {capacity} positions takes {num_bytes / 2**20:.0f} MiB, which could not be "
                f"allocated on {self._device}; use a smaller batch or a shorter context"
            ) from error
