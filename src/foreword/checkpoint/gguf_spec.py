"""GGUF metadata -> ModelSpec."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from foreword.checkpoint.families import FAMILIES, gguf_names
from foreword.checkpoint.gguf_header import GgufHeader
from foreword.checkpoint.gguf_layers import (
    WINDOW_PATTERN,
    fields_from_gguf,
    layers_from_gguf,
    refuse_options,
    rope_from_gguf,
)
from foreword.checkpoint.hf_rope import longrope_context, longrope_magnitude
from foreword.checkpoint.layer_table import layer_table
from foreword.checkpoint.not_yet import what_it_needs
from foreword.checkpoint.typed_keys import Options
from foreword.config import Llama3RopeScaling, ModelSpec, short_repr
from foreword.errors import CheckpointError, ConfigError, UnsupportedArchitectureError, UnsupportedModelError

_PLACE = " in the file's metadata"
ROPE_FREQS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


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
            f"{source} has architecture {short_repr(name)}, which foreword does not have{what_it_needs(name)}; "
            f"supported: {', '.join(gguf_names())}"
        )
    if options.get(f"{name}.expert_count"):
        raise UnsupportedModelError(f"{source} is a mixture of experts; supported: dense models")
    if (parts := options.whole("split.count", 0)) > 1:
        raise UnsupportedModelError(
            f"{source} is one of {parts} parts of a split file; supported: whole files "
            f"(llama.cpp's llama-gguf-split --merge makes one)"
        )
    return name


def options_of(header: GgufHeader, source: str) -> Options:
    """The architecture's own options, with the defaults of its family."""
    name = architecture_of(header, source)
    defaults = {f"{name}.{key}": value for key, value in FAMILIES[name].gguf_defaults.items()}
    return Options({**defaults, **_flat(header.metadata, f"{name}.", source)}, source, _PLACE, f"{name}.")


def spec_from_gguf(header: GgufHeader, source: str) -> ModelSpec:
    """What the model is; for `RopeSpec.llama3` and longrope's divisors see `with_rope_freqs` and `with_divisors`."""
    name = architecture_of(header, source)
    family = FAMILIES[name]
    options = options_of(header, source)
    hidden_size, num_heads = options.size("embedding_length"), options.size("attention.head_count")
    num_layers, context_len = options.size("block_count"), options.size("context_length")
    head_dim = options.size("attention.key_length", max(1, hidden_size // num_heads))
    refuse_options(options, family, head_dim)
    try:
        rope = rope_from_gguf(options, head_dim)
        layers = layers_from_gguf(options, family, rope, num_layers, context_len)
        fields = fields_from_gguf(options, family, header.tensors)
        return ModelSpec(
            family=family.same_as or name,
            hidden_size=hidden_size,
            intermediate_size=options.size("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=options.size("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            vocab_size=_vocab_size(header, source),
            context_len=context_len,
            rope=rope,
            layers=layer_table(layers, rope),
            tied_head="output.weight" not in header.tensors,
            **fields,
        )
    except ConfigError as error:
        raise CheckpointError(f"{source}: its metadata cannot be followed: {error}") from error


def _flat(metadata: Mapping[str, Any], prefix: str, source: str) -> dict[str, Any]:
    """An architecture's options, where a list of one value a layer is that value; most other lists are refused."""
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        if not key.startswith(prefix):
            continue
        if isinstance(value, tuple) and value and key != prefix + WINDOW_PATTERN:
            if len(set(value)) != 1:
                raise UnsupportedModelError(f"{source}: {key} differs between layers; supported: one value for all")
            value = value[0]
        found[key] = value
    return found


def with_divisors(spec: ModelSpec, short: Sequence[float], options: Options, has_long: bool) -> ModelSpec:
    """The spec of a model with longrope; its context ends where the factors of long texts would begin.

    Args:
        spec: what it is otherwise.
        short: the table of short texts.
        options: the architecture's.
        has_long: whether there is another table for long texts.
    """
    original = options.size("rope.scaling.original_context_length", spec.context_len)
    magnitude = options.number("rope.scaling.attn_factor", longrope_magnitude(spec.context_len / original, original))
    rope = replace(spec.rope, divisors=tuple(short), magnitude=magnitude)
    layers = tuple(replace(layer, rope=rope if layer.rope else None) for layer in spec.layers)
    context_len = longrope_context(options.source, spec.context_len, original) if has_long else spec.context_len
    return replace(spec, rope=rope, layers=layers, context_len=context_len)


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


def _vocab_size(header: GgufHeader, source: str) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{source} has no token embedding (token_embd.weight); it holds no whole model")
    return embedding.shape[0]
