"""config.json of a Hugging Face folder -> ModelSpec.

Each family is a row of differences in `families`. What foreword would compute differently from the model's authors is
refused by name, never approximated.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from foreword.checkpoint.families import FAMILIES, Family
from foreword.checkpoint.typed_keys import Options
from foreword.config import Llama3RopeScaling, ModelSpec, RopeSpec, short_repr
from foreword.errors import CheckpointError, ConfigError, UnsupportedArchitectureError, UnsupportedModelError

logger = logging.getLogger(__name__)

ROPE_TYPES = ("default", "linear", "llama3")


def spec_from_config(config: Mapping[str, Any], source: str) -> ModelSpec:
    """What the model is.

    Args:
        config: the content of config.json, in the spelling of transformers 4 or 5.
        source: the model's name for error messages.

    Raises:
        UnsupportedArchitectureError: foreword has no decoder for it.
        UnsupportedModelError: a rope type or option that foreword does not compute.
        CheckpointError: a value is missing or senseless.
    """
    options = Options(config, source)
    family_name = _family(options)
    family = FAMILIES[family_name]
    _refuse_options(options, family_name, family)
    hidden_size, num_heads = options.size("hidden_size"), options.size("num_attention_heads")
    try:
        return ModelSpec(
            family=family.same_as or family_name,
            hidden_size=hidden_size,
            intermediate_size=options.size("intermediate_size"),
            num_layers=options.size("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=options.size("num_key_value_heads", num_heads),
            head_dim=options.size("head_dim", family.default_head_dim or max(1, hidden_size // num_heads)),
            vocab_size=options.size("vocab_size"),
            context_len=_context_len(options, family),
            norm_eps=options.number("rms_norm_eps", 1e-6),
            rope=rope_from_config(config, source),
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            tied_head=options.flag("tie_word_embeddings"),
        )
    except ConfigError as error:
        raise CheckpointError(f"{source}: config.json cannot be followed: {error}") from error


def _context_len(options: Options, family: Family) -> int:
    """Inside its window a sliding-window model attends to everything, as foreword does."""
    context_len = options.size("max_position_embeddings")
    if family.window_needs_flag and not options.flag("use_sliding_window"):
        return context_len
    return min(context_len, options.size("sliding_window", context_len))


def eos_ids(tables: Mapping[str, Mapping[str, Any]], vocab_size: int, source: str) -> tuple[int, ...]:
    """All end tokens that configurations name, in their order, each once; a warning names what is none.

    Args:
        tables: generation_config.json and config.json, by name; each names one, a list of them, or none.
        vocab_size: rows of the model's head.
        source: the model's name for messages.
    """
    found: list[int] = []
    for place, table in tables.items():
        value = table.get("eos_token_id")
        named = value if isinstance(value, list | tuple) else [value]
        found += usable_ends(
            [one for one in named if one is not None], vocab_size, f"{source}: eos_token_id in {place}"
        )
    return tuple(dict.fromkeys(found))


def usable_ends(named: Sequence[Any], vocab_size: int, what: str) -> list[int]:
    """Those that are tokens of the vocabulary; a warning says which are left out."""
    usable = [one for one in named if type(one) is int and 0 <= one < vocab_size]
    if len(usable) < len(named):
        left_out = ", ".join(short_repr(one) for one in named if one not in usable)
        logger.warning(
            f"{what} names {left_out}, which is no token of the model (0 to {vocab_size - 1}); it ends no answer"
        )
    return usable


def rope_from_config(config: Mapping[str, Any], source: str) -> RopeSpec:
    """Rotary embedding: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Raises:
        CheckpointError: values that are none.
        ConfigError: numbers that no rotary embedding has.
        UnsupportedModelError: one that foreword does not compute.
    """
    outer = Options(config, source)
    options = outer.table("rope_parameters")
    options = options if options.values else outer.table("rope_scaling")
    theta = (options if options.get("rope_theta") is not None else outer).number("rope_theta", 10_000.0)
    kind = options.text("rope_type" if options.get("rope_type") is not None else "type", "default")
    if any(isinstance(value, Mapping) for value in options.values.values()):
        raise UnsupportedModelError(f"{source} has several rotary embeddings; supported: one for all layers")
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{source} uses rope type {short_repr(kind)}, which foreword does not compute; supported: {', '.join(ROPE_TYPES)}"
        )
    if kind == "linear":
        return RopeSpec(theta=theta, linear_factor=options.number("factor"))
    if kind == "default":
        return RopeSpec(theta=theta)
    scaling = Llama3RopeScaling(
        factor=options.number("factor"),
        low_freq_factor=options.number("low_freq_factor"),
        high_freq_factor=options.number("high_freq_factor"),
        original_context_len=options.size("original_max_position_embeddings"),
    )
    return RopeSpec(theta=theta, llama3=scaling)


def _family(options: Options) -> str:
    source = options.source
    if options.get("model_type") is None:
        raise CheckpointError(
            f"{source} has no model_type in its config.json, which names the architecture; supported: {', '.join(FAMILIES)}"
        )
    name, architectures = options.text("model_type"), options.texts("architectures")
    if name not in FAMILIES:
        shown = short_repr(name) + (f" ({', '.join(architectures)})" if architectures else "")
        raise UnsupportedArchitectureError(
            f"{source} has architecture {shown}, which foreword does not have; supported: {', '.join(FAMILIES)}"
        )
    if architectures and not any(architecture.endswith("ForCausalLM") for architecture in architectures):
        raise UnsupportedModelError(
            f"{source} is a {', '.join(architectures)}, not a language model that writes text; "
            f"supported: models saved as ...ForCausalLM"
        )
    return name


# What families beside Llama scale or cap; a model that is built like a listed one has none of it.
_MULTIPLIERS = (
    "logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier", "attention_multiplier", "scale_emb",
    "embedding_scale", "residual_scale",
)  # fmt: skip
_CAPS = ("final_logit_softcapping", "attn_logit_softcapping", "clip_qkv")


def _refuse_options(options: Options, family_name: str, family: Family) -> None:
    """Options that change what is computed and that the layers of foreword do not have."""
    quantization = options.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedModelError(
            f"{options.source} is quantised by {short_repr(method)}, which foreword does not read; supported: float32, "
            f"float16 and bfloat16 safetensors, and GGUF files"
        )
    defaults: dict[str, Any] = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0}
    if not family.qkv_bias:
        # Llama's option adds a bias to the output projection as well, which no layer here has.
        defaults["attention_bias"] = False
    defaults |= dict.fromkeys(_MULTIPLIERS, 1.0) | dict.fromkeys(_CAPS, 0.0)
    for option, allowed in defaults.items():
        value = options.get(option)
        if value is not None and value != allowed:
            raise UnsupportedModelError(
                f"{options.source} sets {option} = {short_repr(value)}, which foreword does not compute for "
                f"{family_name}; supported: {allowed!r}"
            )
