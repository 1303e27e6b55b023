"""GGUF metadata -> ModelSpec."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from foreword.checkpoint.families import FAMILIES, gguf_names
from foreword.checkpoint.gguf_header import GgufHeader
from foreword.checkpoint.typed_keys import Options
from foreword.config import Llama3RopeScaling, ModelSpec, RopeSpec, short_repr
from foreword.errors import CheckpointError, ConfigError, UnsupportedArchitectureError, UnsupportedModelError

_PLACE = " in the file's metadata"
ROPE_TYPES = ("none", "linear")
ROPE_FREQS = "rope_freqs.weight"
# Extra tables of rotary schemes that foreword does not compute.
_LONG_ROPE = ("rope_factors_long.weight", "rope_factors_short.weight")


def architecture_of(header: GgufHeader, source: str) -> str:
    """The architecture's name, one of `families.gguf_names()`.

    Raises:
        UnsupportedArchitectureError: another architecture.
        UnsupportedModelError: a mixture of experts, or one part of a split file.
    """
    options = Options(header.metadata, source, _PLACE)
    name = options.text("general.architecture")
    if name not in gguf_names():
        raise UnsupportedArchitectureError(
            f"{source} has architecture {short_repr(name)}, which foreword does not have; supported: "
            f"{', '.join(gguf_names())}"
        )
    if options.get(f"{name}.expert_count"):
        raise UnsupportedModelError(f"{source} is a mixture of experts; supported: dense models")
    if (parts := options.whole("split.count", 0)) > 1:
        raise UnsupportedModelError(
            f"{source} is one of {parts} parts of a split file; supported: whole files "
            f"(llama.cpp's llama-gguf-split --merge makes one)"
        )
    return name


def spec_from_gguf(header: GgufHeader, source: str) -> ModelSpec:
    """What the model is; for `RopeSpec.llama3` see `with_rope_freqs`."""
    name = architecture_of(header, source)
    family = FAMILIES[name]
    options = Options(_flat(header.metadata, f"{name}.", source), source, _PLACE, f"{name}.")
    hidden_size, num_heads = options.size("embedding_length"), options.size("attention.head_count")
    head_dim = options.size("attention.key_length", max(1, hidden_size // num_heads))
    context_len = options.size("context_length")
    _refuse_options(options, head_dim)
    for table in _LONG_ROPE:
        if table in header.tensors:
            raise UnsupportedModelError(f"{source} uses long rope ({table}); supported: no scaling, linear, llama3")
    try:
        return ModelSpec(
            family=family.same_as or name,
            hidden_size=hidden_size,
            intermediate_size=options.size("feed_forward_length"),
            num_layers=options.size("block_count"),
            num_heads=num_heads,
            num_kv_heads=options.size("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            vocab_size=_vocab_size(header, source),
            context_len=min(context_len, options.size("attention.sliding_window", context_len)),
            norm_eps=options.number("attention.layer_norm_rms_epsilon"),
            rope=_rope(options),
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            tied_head="output.weight" not in header.tensors,
        )
    except ConfigError as error:
        raise CheckpointError(f"{source}: its metadata cannot be followed: {error}") from error


def _flat(metadata: Mapping[str, Any], prefix: str, source: str) -> dict[str, Any]:
    """An architecture's options, where a list of one value a layer is that value; other lists are refused."""
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        if not key.startswith(prefix):
            continue
        if isinstance(value, tuple) and value:
            if len(set(value)) != 1:
                raise UnsupportedModelError(f"{source}: {key} differs between layers; supported: one value for all")
            value = value[0]
        found[key] = value
    return found


def with_rope_freqs(spec: ModelSpec, factors: Sequence[float], source: str) -> ModelSpec:
    """The spec with the Llama 3 scaling that made the table `rope_freqs.weight`.

    The table holds what each rotary frequency is divided by: 1 for the fast ones, `factor` for the slow ones, and
    between them 1 / ((1 - s) / factor + s), s = (original_context_len / wavelength - low) / (high - low).

    Raises:
        CheckpointError: it holds zeros, infinities, or what is no number.
        UnsupportedModelError: the table is none that Llama 3's rule makes.
    """
    if not factors or not all(math.isfinite(value) and value > 0 for value in factors):
        raise CheckpointError(
            f"{source}: {ROPE_FREQS} holds other values than finite ones above 0; fetch the file again"
        )
    if all(math.isclose(value, 1.0, rel_tol=1e-6) for value in factors):
        return spec
    for scaling in _scalings(spec, factors):
        if _close(llama3_factors(spec.rope.theta, spec.head_dim, scaling), factors):
            return replace(spec, rope=replace(spec.rope, llama3=scaling))
    raise UnsupportedModelError(
        f"{source} scales its rotary frequencies by a table ({ROPE_FREQS}) that Llama 3's rule does not make; "
        f"supported: no scaling, linear, llama3"
    )


def _close(table: Sequence[float], other: Sequence[float]) -> bool:
    """Equal but for float32's rounding and the converter's."""
    return len(table) == len(other) and all(
        math.isclose(*pair, rel_tol=1e-4) for pair in zip(table, other, strict=True)
    )


def llama3_factors(theta: float, head_dim: int, scaling: Llama3RopeScaling) -> list[float]:
    """What Llama 3's rule divides each rotary frequency by [llama3]."""
    factors = []
    for i in range(head_dim // 2):
        turns = scaling.original_context_len / _wavelength(theta, head_dim, i)
        smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return factors


def _wavelength(theta: float, head_dim: int, i: int) -> float:
    return 2 * math.pi * theta ** (2 * i / head_dim)


def _scalings(spec: ModelSpec, factors: Sequence[float]) -> list[Llama3RopeScaling]:
    """Candidates: the constants of every Llama 3 release, then what fits the table's slope."""
    factor = max(factors)
    rounded = round(factor) if math.isclose(factor, round(factor), rel_tol=1e-4) else factor
    known = Llama3RopeScaling(factor=rounded, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=8192)
    # s is linear in 1 / wavelength, so two frequencies between the plateaus give it. Only the ratios of low, high and
    # the original length matter: low is set to 1.
    points = []
    for i, value in enumerate(factors):
        if 1 + 1e-5 < value < factor * (1 - 1e-5):
            smooth = (1 / value - 1 / factor) / (1 - 1 / factor)
            points.append((1 / _wavelength(spec.rope.theta, spec.head_dim, i), smooth))
    if len(points) < 2:
        return [known]
    (x0, s0), (x1, s1) = points[0], points[-1]
    slope = (s1 - s0) / (x1 - x0)
    offset = slope * x0 - s0  # low / (high - low)
    if slope <= 0 or offset <= 0:
        return [known]
    fitted = Llama3RopeScaling(
        factor=rounded, low_freq_factor=1.0, high_freq_factor=1 + 1 / offset, original_context_len=round(slope / offset)
    )
    return [known, fitted]


def _rope(options: Options) -> RopeSpec:
    theta = options.number("rope.freq_base", 10_000.0)
    kind = options.text("rope.scaling.type", "none")
    factor = options.number("rope.scaling.factor", options.number("rope.scale_linear", 1.0))
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{options.source} uses rope scaling {short_repr(kind)}, which foreword does not compute; supported: "
            f"{', '.join(ROPE_TYPES)}, llama3"
        )
    if kind == "none" and options.get("rope.scale_linear") is None:
        factor = 1.0
    return RopeSpec(theta=theta, linear_factor=factor or 1.0)  # 0 is written for "no scaling"


def _refuse_options(options: Options, head_dim: int) -> None:
    rotated = options.size("rope.dimension_count", head_dim)
    value_len = options.size("attention.value_length", head_dim)
    if rotated != head_dim or value_len != head_dim:
        raise UnsupportedModelError(
            f"{options.source} has heads of {head_dim} dimensions, {rotated} of them rotated, and values of {value_len}; "
            f"supported: all three equal"
        )
    for option in ("attention.scale", "logit_scale", "residual_scale", "embedding_scale", "attention.clamp_kqv"):
        if options.get(option):
            raise UnsupportedModelError(
                f"{options.source} sets {option}, which foreword does not compute for {options.prefix[:-1]}"
            )


def _vocab_size(header: GgufHeader, source: str) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{source} has no token embedding (token_embd.weight); it holds no whole model")
    return embedding.shape[0]
