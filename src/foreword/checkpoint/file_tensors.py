"""Tensors as foreword names them, out of tensors as files hold them: parts of fused ones, heads stacked, rows reordered."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from foreword.checkpoint.families import Family
from foreword.checkpoint.inventory import Place
from foreword.config import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

# (name in the file, first row, row after the last one or None) -> those rows
ReadRows = Callable[[str, int, int | None], "Tensor"]


class FileTensors:
    """The tensors of one model.

    Args:
        spec: what it is.
        places: canonical name -> place.
        read: reads rows of the file's tensors.
        is_interleaved: whether rotated rows of q and k lie in pairs.
        norm_offset: what the files leave out of norm weights.
    """

    def __init__(
        self,
        spec: ModelSpec,
        places: Mapping[str, Place],
        read: ReadRows,
        *,
        is_interleaved: bool = False,
        norm_offset: float = 0.0,
    ) -> None:
        self._spec, self._places, self._read = spec, places, read
        self._is_interleaved, self._norm_offset = is_interleaved, norm_offset

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def tensor(self, name: str) -> "Tensor":
        """The tensor of this canonical name, as it is stored where nothing is to be done. KeyError where there is none."""
        place = self._places[name]
        parts = [self._read(stored, place.begin, place.end) for stored in place.names]
        tensor = parts[0]
        if place.is_stacked:
            import torch

            tensor = torch.stack(parts)
        if self._norm_offset and name.endswith("norm.weight"):
            tensor = tensor.float() + self._norm_offset
        heads = self._heads_of(name)
        return unpermute(tensor, heads, self._num_rotated) if heads and self._is_interleaved else tensor

    def _heads_of(self, name: str) -> int:
        """Heads whose rows the tensor holds, where they are rotated; else 0."""
        spec, part = self._spec, name.rpartition(".")[0].rpartition(".")[2]
        if part == "q_norm" or part == "k_norm":
            return 1
        return {"q": spec.num_heads, "k": spec.num_kv_heads}.get(part, 0)

    @property
    def _num_rotated(self) -> int:
        return self._spec.rope.num_rotated or self._spec.head_dim


def row_order(family: Family, *, is_gguf: bool) -> str:
    """What foreword knows of the order of rows in a file, and the file does not say: part of what is made from it."""
    return "-permuted" if family.interleaved_qk or (is_gguf and family.gguf_permuted_qk) else ""


def unpermute(rows: "Tensor", num_heads: int, num_rotated: int | None = None) -> "Tensor":
    """Rows of a query or key projection, or its bias, from the interleaved rotary layout to the half-split one.

    Within the rotated part of a head, files of that layout store rows 0, d/2, 1, d/2 + 1, ... so that partners of a rotation
    are neighbours.
    """
    heads = rows.reshape(num_heads, -1, *rows.shape[1:])
    rotated = heads[:, : num_rotated or heads.shape[1]]
    pairs = rotated.reshape(num_heads, -1, 2, *rows.shape[1:])
    halves = pairs.transpose(1, 2).reshape(rotated.shape)
    if rotated.shape == heads.shape:
        return halves.reshape(rows.shape)
    import torch

    return torch.cat((halves, heads[:, rotated.shape[1] :]), dim=1).reshape(rows.shape)
