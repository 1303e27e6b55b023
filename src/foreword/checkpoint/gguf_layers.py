"""What GGUF metadata says of a model's layers: rotary embeddings, windows, norms, scales and caps."""

from collections.abc import Container
from typing import Any

from foreword.checkpoint.families import Family
from foreword.checkpoint.hf_layers import periodic
from foreword.checkpoint.hf_rope import yarn_magnitude
from foreword.checkpoint.layer_table import MAX_LAYERS, make_layers
from foreword.checkpoint.typed_keys import Options
from foreword.config import LayerSpec, QueryTemperature, RopeSpec, YarnRopeScaling, short_repr
from foreword.errors import UnsupportedModelError

ROPE_TYPES = ("none", "linear", "yarn", "longrope")
WINDOW_PATTERN = "attention.sliding_window_pattern"

# What is seen from the tensors: field of `ModelSpec` -> a tensor that only such a model has.
_SEEN = {
    "qkv_bias": "blk.0.attn_q.bias",
    "o_bias": "blk.0.attn_output.bias",
    "mlp_bias": "blk.0.ffn_gate.bias",
    "qk_norm": "blk.0.attn_q_norm.weight",
}
_MLP_NORM = "blk.0.ffn_norm.weight"
# Scalars by what a family has in config.json: key of GGUF, field of `ModelSpec`, which is this power of it.
_SCALARS = {
    "embedding_multiplier": ("embedding_scale", "embedding_scale", 1.0),
    "residual_multiplier": ("residual_scale", "residual_scale", 1.0),
    "attention_multiplier": ("attention.scale", "attention_scale", 1.0),
    "logits_scaling": ("logit_scale", "logit_scale", -1.0),
    "logit_scale": ("logit_scale", "logit_scale", 1.0),
    "query_pre_attn_scalar": ("attention.scale", "attention_scale", 1.0),
    "final_logit_softcapping": ("final_logit_softcapping", "logit_cap", 1.0),
    "attn_logit_softcapping": ("attn_logit_softcapping", "score_cap", 1.0),
}
_REFUSED = ("attention.clamp_kqv",)


def rope_from_gguf(options: Options, head_dim: int) -> RopeSpec:
    """The main rotary embedding, but for what tables in the file say."""
    theta = options.number("rope.freq_base", 10_000.0)
    kind = options.text("rope.scaling.type", "none")
    factor = options.number("rope.scaling.factor", options.number("rope.scale_linear", 1.0))
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{options.source} uses rope scaling {short_repr(kind)}, which foreword does not compute; supported: "
            f"{', '.join(ROPE_TYPES)}, llama3"
        )
    rotated = options.size("rope.dimension_count", head_dim)
    shared: dict[str, Any] = {"theta": theta, "num_rotated": None if rotated == head_dim else rotated}
    original = options.size("rope.scaling.original_context_length", options.size("context_length"))
    if beta := options.number("attention.temperature_scale", 0.0):
        length = options.size("attention.temperature_length", original)
        shared["temperature"] = QueryTemperature(beta=beta, original_context_len=length)
    if kind == "yarn":
        return _yarn(options, shared, factor, original)
    if kind == "longrope" or (kind == "none" and options.get("rope.scale_linear") is None):
        factor = 1.0
    return RopeSpec(**shared, linear_factor=factor or 1.0)  # 0 is written for "no scaling"


def _yarn(options: Options, shared: dict[str, Any], factor: float, original: int) -> RopeSpec:
    scaling = YarnRopeScaling(
        factor=factor,
        original_context_len=original,
        beta_fast=options.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=options.number("rope.scaling.yarn_beta_slow", 1.0),
    )
    magnitude = yarn_magnitude(factor)
    if share := options.number("rope.scaling.yarn_log_multiplier", 0.0):
        magnitude /= yarn_magnitude(factor, share)
    attention_factor = options.number("rope.scaling.attn_factor", 0.0)
    return RopeSpec(**shared, yarn=scaling, magnitude=attention_factor or magnitude)


def layers_from_gguf(
    options: Options, family: Family, rope: RopeSpec, num_layers: int, context_len: int
) -> tuple[LayerSpec, ...]:
    """Every layer's window and rotary embedding."""
    windows = _windows(options, family, min(num_layers, MAX_LAYERS))
    windowed = rope
    if family.rope_by_kind:
        windowed = RopeSpec(theta=options.number("rope.freq_base_swa", rope.theta), num_rotated=rope.num_rotated)
    ropes: list[RopeSpec | None] = [rope if window is None else windowed for window in windows]
    if family.no_rope == "unwindowed":
        ropes = [None if window is None else windowed for window in windows]
    if period := family.gguf_no_rope_period:
        ropes = [None if (i + 1) % period == 0 else rope for i, rope in enumerate(ropes)]
    return make_layers(windows, ropes, context_len)


def _windows(options: Options, family: Family, num_layers: int) -> list[int | None]:
    if not options.get("attention.sliding_window"):  # 0 is written for none
        return [None] * num_layers
    window = options.size("attention.sliding_window")
    pattern = options.get(WINDOW_PATTERN)
    if isinstance(pattern, tuple):
        if len(pattern) < num_layers:
            raise options.wrong(WINDOW_PATTERN, "one value a layer")
        return [window if is_windowed else None for is_windowed in pattern[:num_layers]]
    return periodic(window, options.whole(WINDOW_PATTERN, family.window_period), num_layers)


def fields_from_gguf(options: Options, family: Family, tensors: Container[str]) -> dict[str, Any]:
    """What else a model is: fields of `ModelSpec`."""
    fields: dict[str, Any] = {"qkv_bias": family.qkv_bias, "qk_norm": family.qk_norm, **family.spec}
    kind = "layer_norm_epsilon" if fields.get("norm_kind") == "layer" else "layer_norm_rms_epsilon"
    fields["norm_eps"] = options.number(f"attention.{kind}")
    for sets in family.options.values():
        fields |= {name: True for name in sets if name in _SEEN and _SEEN[name] in tensors}
        if "norms" in sets and _MLP_NORM not in tensors:
            fields["norms"] = sets["norms"]
    hidden_size = options.size("embedding_length")
    if family.scales_embedding:
        fields["embedding_scale"] = hidden_size**0.5
    for scalar in family.scalars:
        key, name, power = _SCALARS[scalar]
        if value := options.number(key, 0.0):  # 0 is written for none
            fields[name] = value**power
    if options.size("block_count") in family.gguf_wide_scores:  # GGUF does not say it
        fields["attention_scale"] = (hidden_size / options.size("attention.head_count")) ** -0.5
    return fields


def refuse_options(options: Options, family: Family, head_dim: int) -> None:
    """`UnsupportedModelError` for what foreword would compute otherwise than the model's authors."""
    rotated = options.size("rope.dimension_count", head_dim)
    value_len = options.size("attention.value_length", head_dim)
    # Permuted rows pair dimensions of the whole head.
    is_partial = rotated < head_dim and not family.gguf_permuted_qk
    if (rotated != head_dim and not is_partial) or value_len != head_dim:
        raise UnsupportedModelError(
            f"{options.source} has heads of {head_dim} dimensions, {rotated} of them rotated, and values of {value_len}; "
            f"supported: all three equal, or fewer rotated where the architecture has it so"
        )
    own = {_SCALARS[scalar][0] for scalar in family.scalars}
    for option in sorted({key for key, _, _ in _SCALARS.values()} - own) + list(_REFUSED):
        if options.get(option):
            raise UnsupportedModelError(
                f"{options.source} sets {option}, which foreword does not compute for {options.prefix[:-1]}"
            )
