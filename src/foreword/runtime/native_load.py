"""From a model's weights to a native decoder: through the cache of packed weights, or in memory where there is none."""

import contextlib
import io
import logging
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foreword.cache_folder import cannot_use
from foreword.config import ModelSpec, RopeSpec
from foreword.errors import CapacityError, CheckpointError
from foreword.progress import reported
from foreword.runtime.base import WeightSource
from foreword.runtime.native_weights import MatrixPacker, Packer, write_packed
from foreword.runtime.packed_file import (
    PackedHeader,
    PackedMatrix,
    cache_path,
    check_needed,
    layer_norms,
    padded_norm,
    read_header,
)
from foreword.runtime.torch_rope import inverse_frequencies
from foreword.seal import check_sealed, discard

logger = logging.getLogger(__name__)

# What a damaged or unreadable file of packed weights raises. The kernels' std::out_of_range is an IndexError, their
# std::invalid_argument a ValueError.
_UNUSABLE = (OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError)
_LOADING, _MANY_BYTES = "loading weights", 1 << 29  # read faster than a bar is drawn where they are fewer
_BYTES_A_WEIGHT = {"int8": 1.01, "int4": 0.63}


@dataclass(frozen=True)
class PackedLoader:
    """Loads weights as the kernels read them; from the cache, through it, or past it where it cannot be used."""

    kernels: ModuleType
    dtype: str
    cache_dir: Path
    is_shared: bool = False  # weights are mapped, so that processes share them, and not copied to huge pages

    def decoder(self, spec: ModelSpec, weights: WeightSource, pool: Any, isa: str) -> tuple[Any, int]:
        """A decoder, and the bytes its weights take."""
        check_memory(spec, self.dtype, available_bytes())
        path = cache_path(self.cache_dir, spec, weights, self.dtype)

        def kept() -> tuple[Any, int]:
            check_sealed(path, weights.fingerprint)
            data, header = self._open(path)
            check_needed(header, spec, weights, self.dtype)
            return _build(self.kernels, spec, data, header, pool, isa)

        if _is_there(path):
            try:
                return kept()
            except _UNUSABLE as error:
                logger.warning("packing again, as the packed weights cannot be used: %s", error)
                discard(path)
        try:
            write_packed(path, spec, weights, self.dtype)
        except CheckpointError:
            raise
        except OSError as error:
            cannot_use(self.cache_dir, error)
        else:
            with contextlib.suppress(*_UNUSABLE):
                return kept()
            cannot_use(self.cache_dir, "what was written there cannot be read")
        file = io.BytesIO()
        header = Packer(file, spec, weights, self.dtype).write_all()
        data = self.kernels.WeightBytes.from_memory(np.frombuffer(file.getbuffer(), dtype=np.uint8))
        return _build(self.kernels, spec, data, header, pool, isa)

    def _open(self, path: Path) -> tuple[Any, PackedHeader]:
        header = read_header(path)
        num_bytes = header.hot_end - header.hot_begin
        if num_bytes > _MANY_BYTES:
            reported(_LOADING, 0, num_bytes)
        data = self.kernels.WeightBytes(str(path), header.hot_begin, header.hot_end, is_shared=self.is_shared)
        if num_bytes > _MANY_BYTES:
            reported(_LOADING, num_bytes, num_bytes)
        return data, header


def _build(
    kernels: ModuleType, spec: ModelSpec, data: Any, header: PackedHeader, pool: Any, isa: str
) -> tuple[Any, int]:
    builder = kernels.Weights()
    matrices = {name: _matrix(kernels, data, header.matrix(name)) for name in header.matrices}
    for layer in range(spec.num_layers):
        _add_layer(builder, data, spec, header, matrices, layer)
    if "embed" in header.vectors:
        builder.set_embedding(data, header.vectors["embed"], spec.vocab_size * spec.hidden_size)
    if "norm" in header.vectors:
        bias = {"bias": header.vectors["norm.bias"]} if "norm.bias" in header.vectors else {}
        builder.set_final_norm(data, header.vectors["norm"], padded_norm("norm", (1, spec.hidden_size)), **bias)
    if "head" in matrices:
        builder.set_head(data, matrices["head"])
    return kernels.Decoder(_shape(kernels, spec), builder, pool, isa), header.hot_end - header.hot_begin


def pack_projection(kernels: ModuleType, weight: Tensor, bias: Tensor | None, pool: Any, isa: str) -> Any:
    """A packed linear map in memory."""
    num_outputs, num_inputs = weight.shape
    file = io.BytesIO()
    place = MatrixPacker(file).write(
        "map", weight.detach(), -(-num_inputs // 64) * 64, None if bias is None else bias.detach()
    )
    data = kernels.WeightBytes.from_memory(np.frombuffer(file.getbuffer(), dtype=np.uint8))
    matrix = _matrix(kernels, data, place)
    return kernels.Projection(data, matrix, num_inputs, num_outputs, pool, isa)


def check_memory(spec: ModelSpec, dtype: str, available: int | None) -> None:
    """`CapacityError` if the streamed weights do not fit in what is free."""
    needed = int(spec.num_streamed_parameters * _BYTES_A_WEIGHT[dtype])
    if available is not None and needed > available:
        raise CapacityError(
            f"the model's {dtype} weights take {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB of memory are free; "
            f"close other programs, take a smaller model{' or --dtype int4' if dtype == 'int8' else ''}"
        )


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that can still be taken, within the container's limit; None where the system does not say."""
    free = []
    with contextlib.suppress(OSError, KeyError, ValueError):
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free.append(int(fields["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        free.append(_container_free(cgroup, "memory.max", "memory.current", "inactive_file"))
    with contextlib.suppress(OSError, ValueError):  # the first version of cgroups
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        free.append(_container_free(cgroup / "memory", *names))
    return min(free, default=None)


def _container_free(folder: Path, limit: str, usage: str, reclaimable: str) -> int:
    """What is left of a container's limit. The cache of files counts as used, but its idle part makes way."""
    free = int((folder / limit).read_text()) - int((folder / usage).read_text())
    with contextlib.suppress(OSError, KeyError, ValueError):
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        free += int(fields[reclaimable])
    return max(free, 0)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be searched: writing fails too, and says so
        return False


def _matrix(kernels: ModuleType, data: Any, place: PackedMatrix) -> Any:
    return kernels.matrix(data, place.tiles, place.scales, place.bias, place.width, place.num_tiles, place.bits)


def _add_layer(
    builder: Any, data: Any, spec: ModelSpec, header: PackedHeader, matrices: dict[str, Any], layer: int
) -> None:
    vectors, prefix, own = header.vectors, f"layers.{layer}.", spec.layer(layer)
    maps = (matrices[prefix + name] for name in ("qkv", "o", "gate_up", "down"))
    builder.add_layer(data, None, None, 0, None, None, 0, *maps)
    norms = layer_norms(spec, layer)
    for name, shape in norms.items():
        builder.set_norm(
            layer, name, data, vectors[prefix + name], padded_norm(name, shape), vectors.get(f"{prefix}{name}.bias")
        )
    if spec.norms == "parallel":  # one norm, read by both blocks
        size = padded_norm("attn_norm", norms["attn_norm"])
        at = vectors[prefix + "attn_norm"]
        builder.set_norm(layer, "mlp_norm", data, at, size, vectors.get(f"{prefix}attn_norm.bias"))
    builder.set_attention(layer, -1 if own.rope is None else spec.ropes.index(own.rope), own.window or 0)


def _shape(kernels: ModuleType, spec: ModelSpec) -> Any:
    shape = kernels.Shape()
    shape.hidden, shape.intermediate, shape.num_layers = spec.hidden_size, spec.intermediate_size, spec.num_layers
    shape.num_heads, shape.num_kv_heads, shape.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    shape.vocab, shape.norm_eps = spec.num_logits, spec.norm_eps
    shape.embedded_vocab, shape.has_final_norm = spec.vocab_size, spec.has_final_norm
    shape.joins_embedding, shape.norms_residual = spec.joins_embedding, spec.norms_residual
    shape.removes_mean, shape.norms_all_heads = (
        spec.norm_kind == "layer",
        spec.qk_norm and spec.qk_norm_over == "all_heads",
    )
    shape.is_parallel, shape.has_gelu = spec.norms == "parallel", spec.activation == "gelu_tanh"
    shape.embedding_scale, shape.attention_scale = spec.embedding_scale, spec.attention_scale or 0.0
    shape.score_cap, shape.logit_cap = spec.score_cap or 0.0, spec.logit_cap or 0.0
    shape.ropes = [_rope(kernels, rope, spec.head_dim) for rope in spec.ropes]
    return shape


def _rope(kernels: ModuleType, rope: RopeSpec, head_dim: int) -> Any:
    made = kernels.Rope()
    made.inverse_frequencies = inverse_frequencies(rope, head_dim, torch.device("cpu")).tolist()
    made.magnitude = rope.magnitude
    if rope.temperature is not None:
        made.temperature = rope.temperature.beta
        made.temperature_length = rope.temperature.original_context_len
    return made
