"""A file of packed weights: where it is kept, how it is laid out, and whether it holds all that its model needs.

    <cache_dir>/native/<key>.fwk

    8 bytes     length of the header
    header      JSON: format version, where the streamed part lies, {name: {offset, ...}}
    embedding   bfloat16 rows: memory-mapped, only rows that are used take memory
    streamed    everything else, in the order in which a pass reads it

The key is a hash of the checkpoint's fingerprint, the format's version and all that shapes the layout.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foreword.config import ModelSpec
from foreword.errors import CheckpointError
from foreword.runtime.base import WeightSource

FORMAT_VERSION = 1
_LONGEST_HEADER = 1 << 26


@dataclass(frozen=True)
class PackedMatrix:
    """Where a matrix lies in the packed bytes."""

    tiles: int
    scales: int
    bias: int | None
    width: int
    num_tiles: int
    bits: int


@dataclass
class PackedHeader:
    """What a file of packed weights holds."""

    fingerprint: str
    version: int = FORMAT_VERSION
    hot_begin: int = 0
    hot_end: int = 0
    matrices: dict[str, dict[str, Any]] = field(default_factory=dict)
    vectors: dict[str, int] = field(default_factory=dict)

    def matrix(self, name: str) -> PackedMatrix:
        """The matrix of this name."""
        return PackedMatrix(**self.matrices[name])


def cache_path(cache_dir: Path, spec: ModelSpec, weights: WeightSource, dtype: str) -> Path:
    """Where the packed weights of this model are kept."""
    # How a family orders rows in its files is a fact of foreword's own, which a file's fingerprint does not hold.
    row_order = getattr(weights, "row_order", "")
    layout = json.dumps([weights.fingerprint, row_order, FORMAT_VERSION, dtype, asdict(spec)], sort_keys=True)
    return cache_dir / "native" / f"{hashlib.sha256(layout.encode()).hexdigest()[:32]}.fwk"


def read_header(path: Path) -> PackedHeader:
    """Header of a packed file; `CheckpointError` if it is not one of this version."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        raw = file.read(length) if length < _LONGEST_HEADER else b""
    try:
        header = PackedHeader(**json.loads(raw))
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a file of packed weights ({error})") from error
    if header.version != FORMAT_VERSION or header.hot_end > path.stat().st_size:
        raise CheckpointError(f"{path} is of another version or cut short")
    return header


def layer_norms(spec: ModelSpec, layer: int) -> dict[str, tuple[int, int]]:
    """The norms of a layer: rows and columns of their weights; each row is padded by itself."""
    is_there = {
        "attn_norm": spec.has_pre_norms and (spec.has_first_norm or layer > 0),
        "hidden_norm": spec.joins_embedding and layer == 0,
        "attn_out_norm": spec.has_out_norms,
        "mlp_norm": spec.has_mlp_norm,
        "mlp_out_norm": spec.has_out_norms,
    }
    norms = {name: (1, spec.hidden_size) for name, is_one in is_there.items() if is_one}
    if spec.qk_norm:
        for name, num_heads in (("q_norm", spec.num_heads), ("k_norm", spec.num_kv_heads)):
            norms[name] = (1 if spec.qk_norm_over == "head" else num_heads, spec.head_dim)
    return norms


def has_norm_biases(spec: ModelSpec) -> bool:
    """Whether norms of the stream have biases; those of queries and keys have none."""
    return spec.norm_bias and spec.norm_kind == "layer"


def padded_norm(name: str, shape: tuple[int, int]) -> int:
    """Values of a norm's weight as packed."""
    rows, columns = shape
    return rows * up(columns, 16 if name in ("q_norm", "k_norm") else 64)


def needed_vectors(spec: ModelSpec, weights: WeightSource) -> set[str]:
    """The embedding and the norms that a decoder of this spec reads, biases as `name.bias`.

    Heads of drafters borrow the embedding, and the norm where theirs has none: those are needed where the source has them.
    """
    norms = {f"layers.{layer}.{name}" for layer in range(spec.num_layers) for name in layer_norms(spec, layer)}
    if spec.has_final_norm and weights.has_tensor("norm.weight"):
        norms.add("norm")
    biases = {f"{name}.bias" for name in norms if has_norm_biases(spec) and not name.endswith(("q_norm", "k_norm"))}
    return norms | biases | ({"embed"} if weights.has_tensor("embed.weight") else set())


def needed_matrices(spec: ModelSpec, weights: WeightSource, dtype: str) -> dict[str, tuple[int, int, int, bool]]:
    """Width, tiles of 16 rows, bits of a weight and whether there is a bias, of every matrix that a decoder reads."""
    bits, hidden, inner = bits_of(dtype), up(spec.hidden_size, 64), up(spec.intermediate_size, 64)
    dim = up(spec.head_dim, 16)
    found: dict[str, tuple[int, int, int, bool]] = {}
    for layer in range(spec.num_layers):
        halves = spec.qkv_input_size(layer) // spec.hidden_size
        rows = (spec.num_heads + 2 * spec.num_kv_heads) * dim
        found |= {
            f"layers.{layer}.qkv": (halves * hidden, rows // 16, bits, spec.qkv_bias),
            f"layers.{layer}.o": (up(spec.num_heads * dim, 64), hidden // 16, bits, spec.o_bias),
            f"layers.{layer}.gate_up": (hidden, 2 * inner // 16, bits, spec.mlp_bias),
            f"layers.{layer}.down": (inner, hidden // 16, bits, spec.mlp_bias),
        }
    if weights.has_tensor("embed.weight" if spec.tied_head else "head.weight"):
        found["head"] = (hidden, up(spec.num_logits, 16) // 16, 8, False)
    return found


def check_needed(header: PackedHeader, spec: ModelSpec, weights: WeightSource, dtype: str) -> None:
    """`CheckpointError` where the packed weights lack what a decoder of this spec reads, or have it in another size."""
    if header.fingerprint != weights.fingerprint:
        raise CheckpointError("the packed weights were made from another model")
    if lacking := sorted(needed_vectors(spec, weights) - header.vectors.keys()):
        raise CheckpointError(f"the packed weights lack {', '.join(lacking)}")
    for name, wanted in needed_matrices(spec, weights, dtype).items():
        if name not in header.matrices:
            raise CheckpointError(f"the packed weights lack {name}")
        place = header.matrix(name)
        if (found := (place.width, place.num_tiles, place.bits, place.bias is not None)) != wanted:
            raise CheckpointError(f"the packed {name} has (width, tiles, bits, bias) {found}; the model has {wanted}")


def bits_of(dtype: str) -> int:
    """Of a weight of the layers."""
    return {"int8": 8, "int4": 4}[dtype]


def up(n: int, multiple: int) -> int:
    """The next multiple."""
    return -(-n // multiple) * multiple
