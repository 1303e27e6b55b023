"""config.json of a Hugging Face folder -> ModelSpec.

Each family is a row of differences in `families`. Of a model that reads pictures or sound too, the text's half is meant
(`text_config`). What foreword would compute differently from the model's authors is
refused by name, never approximated.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from foreword.checkpoint.families import FAMILIES, Family, hf_names
from foreword.checkpoint.hf_layers import layers_from_config
from foreword.checkpoint.layer_table import layer_table
from foreword.checkpoint.not_yet import what_it_needs
from foreword.checkpoint.typed_keys import Options
from foreword.config import ModelSpec, short_repr
from foreword.errors import CheckpointError, ConfigError, UnsupportedArchitectureError, UnsupportedModelError

logger = logging.getLogger(__name__)


def text_half(config: Mapping[str, Any], source: str) -> tuple[Mapping[str, Any], bool]:
    """The part of config.json that describes the language model, and whether it is one of several."""
    inner = Options(config, source).table("text_config").values
    if not inner:
        return config, False
    outer = {key: config[key] for key in ("architectures", "quantization_config") if key in config}
    return {**inner, **outer}, True


def family_of(config: Mapping[str, Any], source: str) -> Family:
    """The row of its family; raises what `spec_from_config` raises."""
    text, is_half = text_half(config, source)
    return FAMILIES[_family(Options(text, source), is_half)]


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
    text, is_half = text_half(config, source)
    family_name = _family(Options(text, source), is_half)
    family = FAMILIES[family_name]
    options = Options({**family.defaults, **text}, source)
    _refuse_options(options, family_name, family)
    hidden_size, num_heads = options.size("hidden_size"), options.size("num_attention_heads")
    num_layers, context_len = options.size("num_hidden_layers"), options.size("max_position_embeddings")
    head_dim = options.size("head_dim", family.default_head_dim or max(1, hidden_size // num_heads))
    try:
        rope, layers, context_len = layers_from_config(options, family, num_layers, head_dim, context_len)
        return ModelSpec(
            family=family.same_as or family_name,
            hidden_size=hidden_size,
            intermediate_size=options.size(family.inner_size),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=options.size("num_key_value_heads", num_heads),
            head_dim=head_dim,
            vocab_size=options.size("vocab_size"),
            context_len=context_len,
            rope=rope,
            layers=layer_table(layers, rope),
            tied_head=options.flag("tie_word_embeddings", is_half),  # of several parts, the files show it
            **_of_family(options, family, hidden_size),
        )
    except ConfigError as error:
        raise CheckpointError(f"{source}: config.json cannot be followed: {error}") from error


def _of_family(options: Options, family: Family, hidden_size: int) -> dict[str, Any]:
    """What follows from the family and its own options."""
    fields: dict[str, Any] = {"qkv_bias": family.qkv_bias, "qk_norm": family.qk_norm, **family.spec}
    is_layer_norm = fields.get("norm_kind") == "layer"
    fields["norm_eps"] = (
        options.number("layer_norm_eps", 1e-5) if is_layer_norm else options.number("rms_norm_eps", 1e-6)
    )
    for option, sets in family.options.items():
        fields |= sets if options.flag(option) else {}
    if family.scales_embedding:
        fields["embedding_scale"] = hidden_size**0.5
    for key in family.scalars:
        if options.get(key) is not None:
            name, power = _SCALARS[key]
            value = options.number(key)
            if value <= 0:
                raise options.wrong(key, "a finite number above 0")
            fields[name] = value**power
    return fields


# key of config.json -> field of `ModelSpec`, which is this power of it
_SCALARS = {
    "embedding_multiplier": ("embedding_scale", 1.0),
    "residual_multiplier": ("residual_scale", 1.0),
    "attention_multiplier": ("attention_scale", 1.0),
    "logits_scaling": ("logit_scale", -1.0),
    "logit_scale": ("logit_scale", 1.0),
    "query_pre_attn_scalar": ("attention_scale", -0.5),
    "final_logit_softcapping": ("logit_cap", 1.0),
    "attn_logit_softcapping": ("score_cap", 1.0),
}


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


def _family(options: Options, is_half: bool) -> str:
    source = options.source
    if options.get("model_type") is None:
        raise CheckpointError(
            f"{source} has no model_type in its config.json, which names the architecture; supported: {', '.join(hf_names())}"
        )
    name, architectures = options.text("model_type"), options.texts("architectures")
    if name not in hf_names():
        shown = short_repr(name) + (f" ({', '.join(architectures)})" if architectures else "")
        raise UnsupportedArchitectureError(
            f"{source} has architecture {shown}, which foreword does not have{what_it_needs(name)}; "
            f"supported: {', '.join(hf_names())}"
        )
    ends = ("ForCausalLM", "ForConditionalGeneration") if is_half else ("ForCausalLM",)
    if architectures and not any(architecture.endswith(ends) for architecture in architectures):
        raise UnsupportedModelError(
            f"{source} is a {', '.join(architectures)}, not a language model that writes text; "
            f"supported: models saved as ...ForCausalLM"
        )
    if name == "granitemoehybrid":
        _refuse_hybrid(options)
    return name


def _refuse_hybrid(options: Options) -> None:
    """Granite 4 is computed where all its layers attend and none has experts."""
    kinds = set(options.texts("layer_types") or options.texts("layers_block_type"))
    if options.whole("num_local_experts", 8) or not kinds or not kinds <= {"attention", "full_attention"}:
        raise UnsupportedArchitectureError(
            f"{options.source} has architecture 'granitemoehybrid' with recurrent layers or experts, which foreword does "
            f"not have; supported: layers that all attend and none with experts"
        )


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
    is_gelu = family.spec.get("activation") == "gelu_tanh"
    allowed_values: dict[str, Any] = {
        "mlp_bias": False,
        "partial_rotary_factor": 1.0,
        "use_bidirectional_attention": False,
    }
    # Gemma 2's first configs name another activation than its authors meant, and transformers computes, in `hidden_act`.
    allowed_values |= {"hidden_activation": "gelu_pytorch_tanh"} if is_gelu else {"hidden_act": "silu"}
    if not family.qkv_bias:  # where it is fixed, the option says nothing
        allowed_values["attention_bias"] = False
    allowed_values |= dict.fromkeys(_MULTIPLIERS, 1.0) | dict.fromkeys(_CAPS, 0.0)
    known = {*family.options, *family.scalars, *family.defaults}
    for option, allowed in allowed_values.items():
        value = options.get(option)
        if value is not None and value != allowed and option not in known:
            raise UnsupportedModelError(
                f"{options.source} sets {option} = {short_repr(value)}, which foreword does not compute for "
                f"{family_name}; supported: {allowed!r}"
            )
