"""Weights as the native kernels read them: quantised and packed. `packed_file` says how they lie in the file."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from foreword.config import ModelSpec
from foreword.errors import CheckpointError, ConfigError
from foreword.files import locked, sweep_folder, sweep_parts
from foreword.progress import reported
from foreword.runtime.base import WeightSource
from foreword.runtime.packed_file import (
    PackedHeader,
    PackedMatrix,
    bits_of,
    layer_norms,
    needed_vectors,
    padded_norm,
    up,
)
from foreword.seal import is_sealed, sealed_file

_ALIGNMENT = 4096
_PACKING = "packing weights"
_CHUNK_VALUES = 1 << 24  # weights quantised at once: 64 MB of float32


class Sink(Protocol):
    """A binary file that is written, or memory."""

    def tell(self) -> int:
        """Where the next byte goes."""
        ...

    def seek(self, at: int, /) -> int:
        """Go on writing at `at`."""
        ...

    def write(self, data: Any, /) -> int:
        """Write bytes, or what holds them."""
        ...


def write_packed(path: Path, spec: ModelSpec, weights: WeightSource, dtype: str) -> None:
    """Quantise, pack and write, unless another process did so meanwhile; the file appears when it is whole."""
    with locked(path):
        if is_sealed(path, weights.fingerprint):
            return
        sweep_parts(path)
        sweep_folder(path.parent)
        with sealed_file(path, weights.fingerprint) as file:
            Packer(file, spec, weights, dtype).write_all()


class MatrixPacker:
    """Writes packed matrices and remembers where they lie."""

    def __init__(self, file: Sink) -> None:
        import foreword_kernels  # pyright: ignore[reportMissingImports]

        self._kernels, self._file = foreword_kernels, file
        self.places: dict[str, dict[str, Any]] = {}

    def write(
        self,
        name: str,
        matrix: Tensor,
        width: int,
        bias: Tensor | None,
        bits: int = 8,
        num_rows: int | None = None,
        scale: float = 1.0,
    ) -> PackedMatrix:
        """Pack `scale` times one (out, in) matrix and its bias, padded to `num_rows` (whole tiles by default) and `width`."""
        rows = up(num_rows or matrix.shape[0], 16)
        tiles_at = _align(self._file)
        scales = []
        for first, last in _chunks(rows, width):
            rows_of_it = _scaled(matrix[first : min(last, matrix.shape[0])].float(), scale)
            part = _pad(rows_of_it, last - first, width).contiguous().numpy()
            tiles, part_scales = self._pack(part, bits)
            self._file.write(tiles.data)
            scales.append(part_scales)
        scales_at = _align(self._file, 64)
        for part_scales in scales:
            self._file.write(part_scales.data)
        bias_at = None
        if bias is not None:
            bias_at = _align(self._file, 64)
            self._file.write(_pad(_scaled(bias.float(), scale)[None], 1, rows).contiguous().numpy().data)
        place = PackedMatrix(tiles_at, scales_at, bias_at, width, rows // 16, bits)
        self.places[name] = asdict(place)
        return place

    def _pack(self, part: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
        tiles = np.empty(part.size * bits // 8, dtype=np.uint8)
        if bits == 8:
            scales = np.empty(part.shape[0], dtype=np.float32)
            self._kernels.pack_int8(part, tiles, scales)
        else:
            scales = np.empty(part.size // 16, dtype=np.uint16)
            self._kernels.pack_int4(part, tiles, scales)
        return tiles, scales


class Packer:
    """Writes one model's weights tensor by tensor: memory of one tensor and one chunk of it."""

    def __init__(self, file: Sink, spec: ModelSpec, weights: WeightSource, dtype: str) -> None:
        self._matrices = MatrixPacker(file)
        self._file, self._spec, self._weights = file, spec, weights
        self._bits = bits_of(dtype)
        self.header = PackedHeader(weights.fingerprint, matrices=self._matrices.places)
        self._vectors = needed_vectors(spec, weights)
        self._header_room = 0

    def write_all(self) -> PackedHeader:
        """Embedding, layers in the order a pass reads them, norm, head; the header last, into the room left for it.

        Raises:
            CheckpointError: a tensor is missing, has another shape, or holds NaN or infinity.
        """
        spec = self._spec
        tensors = (name if name.endswith(".bias") else f"{name}.weight" for name in self._vectors)
        lacking = sorted(name for name in tensors if not self._weights.has_tensor(name))
        if lacking:
            raise CheckpointError(f"the model lacks the tensors {', '.join(lacking)}")
        self._header_room = 8 + 4096 + 2048 * (spec.num_layers + 2)
        self._file.seek(self._header_room)
        if "embed" in self._vectors:
            _align(self._file)
            self.header.vectors["embed"] = self._file.tell()
            self._write_embedding(self._tensor("embed.weight", (spec.vocab_size, spec.hidden_size)))
        _align(self._file)
        self.header.hot_begin = self._file.tell()
        for layer in range(spec.num_layers):
            self._write_layer(layer)
            self._tell(layer + 1)
        if "norm" in self._vectors:
            self._write_norm("norm", "norm", (1, spec.hidden_size))
        self._write_head()
        self.header.hot_end = self._file.tell()
        reported(_PACKING, self.header.hot_end, self.header.hot_end)
        raw = json.dumps(asdict(self.header)).encode()
        if 8 + len(raw) > self._header_room:
            raise CheckpointError(
                f"the header of the packed weights takes {len(raw)} bytes; room was left for {self._header_room}"
            )
        self._file.seek(0)
        self._file.write(len(raw).to_bytes(8, "little") + raw)
        return self.header

    def _tell(self, num_layers: int) -> None:
        """How many bytes are written, and how many there will be if all layers are as large; the head comes after them."""
        done, begin = self._file.tell(), self.header.hot_begin
        head = self._spec.num_logits * up(self._spec.hidden_size, 64)
        reported(_PACKING, done, begin + (done - begin) * self._spec.num_layers // num_layers + head)

    def _write_layer(self, layer: int) -> None:
        spec, prefix = self._spec, f"layers.{layer}."
        hidden, dim = up(spec.hidden_size, 64), up(spec.head_dim, 16)
        for norm, shape in layer_norms(spec, layer).items():
            self._write_norm(prefix + norm, norm, shape)
        heads = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
        inputs = spec.qkv_input_size(layer)
        parts = [self._head_rows(f"{prefix}{name}.weight", count, inputs) for name, count in heads.items()]
        bias = None
        if spec.qkv_bias:
            biases = [self._head_rows(f"{prefix}{name}.bias", count, None) for name, count in heads.items()]
            bias = torch.cat(biases)
        qkv = torch.cat(parts)
        if inputs > spec.hidden_size:  # each of the joined halves padded by itself
            qkv = torch.cat([_pad(half, len(half), hidden) for half in qkv.split(spec.hidden_size, dim=1)], dim=1)
        self._write_matrix(prefix + "qkv", qkv, hidden * (inputs // spec.hidden_size), bias)
        o_bias = self._tensor(f"{prefix}o.bias", (spec.hidden_size,)) if spec.o_bias else None
        o = self._head_columns(f"{prefix}o.weight")
        self._write_branch_end(prefix + "o", o, up(spec.num_heads * dim, 64), o_bias)
        gate_bias = self._gate_up_bias(prefix) if spec.mlp_bias else None
        self._write_matrix(prefix + "gate_up", self._gateup(prefix), hidden, gate_bias)
        down_bias = self._tensor(f"{prefix}down.bias", (spec.hidden_size,)) if spec.mlp_bias else None
        down = self._tensor(f"{prefix}down.weight", (spec.hidden_size, spec.intermediate_size))
        self._write_branch_end(prefix + "down", down, up(spec.intermediate_size, 64), down_bias)

    def _write_branch_end(self, name: str, matrix: Tensor, width: int, bias: Tensor | None) -> None:
        """The map that ends a branch, times what the branch is multiplied by, unless a norm comes after it."""
        scale = 1.0 if self._spec.has_out_norms else self._spec.residual_scale
        num_rows = up(self._spec.hidden_size, 64)
        self._matrices.write(name, matrix, width, bias, self._bits, num_rows, scale)

    def _write_head(self) -> None:
        spec = self._spec
        name = "embed.weight" if spec.tied_head else "head.weight"
        if not self._weights.has_tensor(name):
            return
        head = self._tensor(name, (spec.num_logits, spec.hidden_size))
        # int4 models keep an int8 head: it decides between tokens, and is read once.
        self._matrices.write("head", head, up(spec.hidden_size, 64), None, 8, scale=spec.logit_scale)

    def _head_rows(self, name: str, num_heads: int, columns: int | None) -> Tensor:
        """Rows of q, k or v with each head padded to whole lanes."""
        dim, padded = self._spec.head_dim, up(self._spec.head_dim, 16)
        shape = (num_heads * dim,) if columns is None else (num_heads * dim, columns)
        heads = self._tensor(name, shape).reshape(num_heads, dim, *shape[1:])
        if padded == dim:
            return heads.reshape(shape)
        out = heads.new_zeros(num_heads, padded, *shape[1:])
        out[:, :dim] = heads
        return out.reshape(num_heads * padded, *shape[1:])

    def _head_columns(self, name: str) -> Tensor:
        """Columns of o, each head padded likewise."""
        spec, padded = self._spec, up(self._spec.head_dim, 16)
        heads = self._tensor(name, (spec.hidden_size, spec.num_heads * spec.head_dim))
        out = heads.new_zeros(up(spec.hidden_size, 64), spec.num_heads, padded)
        out[: spec.hidden_size, :, : spec.head_dim] = heads.reshape(spec.hidden_size, spec.num_heads, spec.head_dim)
        return out.reshape(-1, spec.num_heads * padded)

    def _gateup(self, prefix: str) -> Tensor:
        """Sixteen rows of gate, sixteen of up, and so on."""
        spec, width = self._spec, up(self._spec.intermediate_size, 64)
        out = torch.zeros(width // 16, 2, 16, spec.hidden_size)
        for which, name in enumerate(("gate", "up")):
            part = self._tensor(f"{prefix}{name}.weight", (spec.intermediate_size, spec.hidden_size)).float()
            out[:, which] = _pad(part, width, spec.hidden_size).reshape(-1, 16, spec.hidden_size)
        return out.reshape(2 * width, spec.hidden_size)

    def _gate_up_bias(self, prefix: str) -> Tensor:
        """Biases in the order of the rows."""
        spec, width = self._spec, up(self._spec.intermediate_size, 64)
        parts = [
            self._tensor(f"{prefix}{name}.bias", (spec.intermediate_size,)).float()[None] for name in ("gate", "up")
        ]
        return torch.stack([_pad(part, 1, width).reshape(-1, 16) for part in parts], dim=1).reshape(-1)

    def _write_matrix(self, name: str, matrix: Tensor, width: int, bias: Tensor | None) -> None:
        self._matrices.write(name, matrix, width, bias, self._bits)

    def _write_norm(self, name: str, kind: str, shape: tuple[int, int]) -> None:
        """A norm's weight and its bias, where it has one; of what a branch adds, times what the branch is multiplied by."""
        scale = self._spec.residual_scale if kind.endswith("_out_norm") else 1.0
        rows, columns = shape
        for vector, tensor in ((name, f"{name}.weight"), (f"{name}.bias", f"{name}.bias")):
            if vector not in self._vectors:
                continue
            found = self._weights.tensor(tensor)
            wanted = shape if found.ndim == 2 else (rows * columns,)
            values = _scaled(self._tensor(tensor, wanted).float(), scale).reshape(rows, columns)
            self.header.vectors[vector] = _align(self._file, 64)
            self._file.write(_pad(values, rows, padded_norm(kind, shape) // rows).contiguous().numpy().data)

    def _write_embedding(self, embedding: Tensor) -> None:
        for first, last in _chunks(embedding.shape[0], embedding.shape[1]):
            part = embedding[first:last].to(torch.bfloat16).contiguous()
            self._file.write(part.view(torch.int16).numpy().data)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._weights.tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name} has shape {tuple(tensor.shape)}; the model's configuration asks for {shape}"
            )
        for first, last in _chunks(tensor.shape[0], tensor.numel() // tensor.shape[0]):
            if not bool(torch.isfinite(tensor[first:last]).all()):
                raise CheckpointError(f"tensor {name} holds NaN or infinity; the checkpoint is damaged, fetch it again")
        return tensor


def _chunks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole tiles that hold at most `_CHUNK_VALUES` values."""
    step = max(_CHUNK_VALUES // max(columns, 1) // 16 * 16, 16)
    for first in range(0, rows, step):
        yield first, min(first + step, rows)


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return tensor if scale == 1.0 else tensor * scale


def _align(file: Sink, alignment: int = _ALIGNMENT) -> int:
    at = up(file.tell(), alignment)
    file.seek(at)
    return at


def _pad(matrix: Tensor, rows: int, columns: int) -> Tensor:
    if tuple(matrix.shape) == (rows, columns):
        return matrix
    out = matrix.new_zeros(rows, columns)
    out[: matrix.shape[0], : matrix.shape[1]] = matrix
    return out


def check_dtype(dtype: str) -> None:
    """`ConfigError` unless the native runtime computes in it."""
    if dtype not in ("int8", "int4"):
        raise ConfigError(f"the native runtime does not compute in {dtype!r}; allowed: int8, int4")
