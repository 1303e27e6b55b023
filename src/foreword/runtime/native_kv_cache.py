"""Keys and values of many requests in the memory of the kernels."""

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from foreword.config import ModelSpec
from foreword.errors import CapacityError

KV_BYTES = {"float32": 4, "bfloat16": 2}  # of one number, by kv_dtype


@final
class NativeKVCache:
    """Keys and values in float32 or bfloat16; one sequence slot per request."""

    def __init__(self, kernels: ModuleType, spec: ModelSpec, dtype: str = "float32") -> None:
        self._kernels, self._spec, self.dtype = kernels, spec, dtype
        self.handle = kernels.KvCache(spec.num_layers, spec.num_kv_heads, spec.head_dim, dtype)

    def open(self, capacity: int) -> int:
        """Reserve a sequence slot of at least `capacity` rows; returns its number; `CapacityError` where memory is short."""
        try:
            return self.handle.open(capacity)
        except MemoryError as error:
            raise self._too_large(capacity) from error

    def close(self, slot: int) -> None:
        """Free the slot."""
        self.handle.close(slot)

    def reserve(self, slot: int, capacity: int) -> None:
        """Make the slot at least `capacity` rows long, keeping what it holds; `CapacityError` leaves it as it was."""
        try:
            self.handle.reserve(slot, capacity)
        except MemoryError as error:
            raise self._too_large(capacity) from error

    def length(self, slot: int) -> int:
        """Committed positions."""
        return self.handle.length(slot)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the scratch rows `path` (ascending node numbers), in that order; drop the rest."""
        self.handle.commit(slot, list(path))

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed positions from `length` on."""
        self.handle.truncate(slot, length)

    def fork(self, slot: int, length: int, capacity: int) -> int:
        """Reserve a sequence slot of at least `capacity` rows that begins with the first `length` committed rows of `slot`.

        Returns its slot; `CapacityError` where memory is short, `ValueError` for rows that are not committed.
        """
        try:
            return self.handle.fork(slot, length, capacity)
        except MemoryError as error:
            raise self._too_large(capacity) from error

    def rows(
        self, slot: int
    ) -> tuple[Float[Tensor, "layers kv_heads len dim"], Float[Tensor, "layers kv_heads len dim"]]:
        """Copies of the committed keys and values, float32 whatever they are kept in."""
        shape = (self._spec.num_layers, self._spec.num_kv_heads, self.length(slot), self._spec.head_dim)
        keys, values = torch.empty(shape), torch.empty(shape)
        self.handle.copy_out(slot, keys.numpy(), values.numpy())
        return keys, values

    @property
    def layout(self) -> str:
        """The kernels themselves: another build may add in another order. Instruction sets and threads change no bit."""
        return f"native {self.dtype} {_digest(self._kernels._native.__file__)}"

    def save_rows(self, slot: int, first: int, count: int) -> UInt8[np.ndarray, " bytes"]:
        """A copy of the committed rows [first, first + count), whole groups of 16; `ValueError` for others."""
        rows = np.empty(self._row_bytes * count, dtype=np.uint8)
        self.handle.save_rows(slot, first, rows)
        return rows

    def load_rows(self, slot: int, rows: UInt8[np.ndarray, " bytes"]) -> None:
        """Commit saved rows behind those that are there; `ValueError` where they do not fit."""
        self.handle.load_rows(slot, rows)

    @property
    def num_open(self) -> int:
        """Slots in use."""
        return self.handle.num_open

    @property
    def num_bytes(self) -> int:
        """Memory that the slots take."""
        return self.handle.num_bytes

    def region_bytes(self, capacity: int) -> int:
        """Memory that a region of `capacity` rows takes."""
        return -(-capacity // 64) * 64 * self._row_bytes  # as the kernels round them

    @property
    def _row_bytes(self) -> int:
        """Heads are padded to whole lanes."""
        head_bytes = -(-self._spec.head_dim // 16) * 16 * KV_BYTES[self.dtype]
        return self._spec.num_layers * 2 * self._spec.num_kv_heads * head_bytes

    def _too_large(self, capacity: int) -> CapacityError:
        num_bytes = self.region_bytes(capacity)
        smaller = ', a shorter context or kv_dtype "bfloat16"' if self.dtype == "float32" else " or a shorter context"
        return CapacityError(
            f"a {self.dtype} key-value cache of {capacity} positions takes {num_bytes / 2**20:.0f} MiB, which could not be allocated "
            f"beside the {self.num_bytes / 2**20:.0f} MiB of {self.num_open} open ones; "
            f"use a smaller batch{smaller}"
        )


@functools.cache
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]
