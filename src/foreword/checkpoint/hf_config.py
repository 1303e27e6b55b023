"""config.json of a Hugging Face folder -> ModelSpec.

Each family is a row of differences in `families`. What foreword would compute differently from the model's authors is
refused by name, never approximated.
"""

from collections.abc import Mapping
from typing import Any

from foreword.checkpoint.families import FAMILIES, Family
from foreword.config import Llama3RopeScaling, ModelSpec, RopeSpec
from foreword.errors import CheckpointError, ConfigError, UnsupportedModelError

ROPE_TYPES = ("default", "linear", "llama3")


def spec_from_config(config: Mapping[str, Any], source: str) -> ModelSpec:
    """What the model is.

    Args:
        config: the content of config.json, in the spelling of transformers 4 or 5.
        source: the model's name for error messages.

    Raises:
        UnsupportedModelError: an architecture, rope type or option that foreword does not compute.
        CheckpointError: a size is missing or senseless.
    """
    family_name = _family(config, source)
    family = FAMILIES[family_name]
    _refuse_options(config, family_name, family, source)
    hidden_size = _size(config, "hidden_size", source)
    num_heads = _size(config, "num_attention_heads", source)
    context_len = _size(config, "max_position_embeddings", source)
    window = config.get("sliding_window") if _has_window(config, family) else None
    try:
        return ModelSpec(
            family=family.same_as or family_name,
            hidden_size=hidden_size,
            intermediate_size=_size(config, "intermediate_size", source),
            num_layers=_size(config, "num_hidden_layers", source),
            num_heads=num_heads,
            num_kv_heads=_size(config, "num_key_value_heads", source, num_heads),
            head_dim=_size(config, "head_dim", source, family.default_head_dim or hidden_size // num_heads),
            vocab_size=_size(config, "vocab_size", source),
            # Inside its window a sliding-window model attends to everything, as foreword does.
            context_len=min(context_len, window) if window else context_len,
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=rope_from_config(config, source),
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            tied_head=bool(config.get("tie_word_embeddings", False)),
        )
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from error


def eos_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """All end tokens that generation_config.json and config.json name, in their order, each once."""
    found: list[int] = []
    for config in configs:
        value = config.get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        found += [token for token in ids if isinstance(token, int) and token not in found]
    return tuple(found)


def rope_from_config(config: Mapping[str, Any], source: str) -> RopeSpec:
    """Rotary embedding: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    options = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(options, Mapping):
        raise CheckpointError(f"{source}: its rope options are {options!r}, not a table; fetch config.json again")
    theta = options.get("rope_theta", config.get("rope_theta", 10_000.0))
    kind = options.get("rope_type", options.get("type", "default"))
    if any(isinstance(value, Mapping) for value in options.values()):
        raise UnsupportedModelError(f"{source} has several rotary embeddings; supported: one for all layers")
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{source} uses rope type {kind!r}, which foreword does not compute; supported: {', '.join(ROPE_TYPES)}"
        )
    try:
        theta = float(theta)
        if kind == "linear":
            return RopeSpec(theta=theta, linear_factor=float(options["factor"]))
        if kind == "llama3":
            return RopeSpec(
                theta=theta,
                llama3=Llama3RopeScaling(
                    factor=float(options["factor"]),
                    low_freq_factor=float(options["low_freq_factor"]),
                    high_freq_factor=float(options["high_freq_factor"]),
                    original_context_len=int(options["original_max_position_embeddings"]),
                ),
            )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{source}: unusable options for rope type {kind!r}: {error}") from error
    return RopeSpec(theta=theta)


def _family(config: Mapping[str, Any], source: str) -> str:
    if "model_type" not in config:
        raise CheckpointError(
            f"{source} has no model_type in its config.json, which names the architecture; supported: {', '.join(FAMILIES)}"
        )
    name = str(config["model_type"])
    architectures = config.get("architectures") or []
    if name not in FAMILIES:
        shown = f"{name!r}" + (f" ({', '.join(map(str, architectures))})" if architectures else "")
        raise UnsupportedModelError(
            f"{source} has architecture {shown}, which foreword does not have; supported: {', '.join(FAMILIES)}"
        )
    if architectures and not any(str(architecture).endswith("ForCausalLM") for architecture in architectures):
        raise UnsupportedModelError(
            f"{source} is a {', '.join(map(str, architectures))}, not a language model that writes text; "
            f"supported: models saved as ...ForCausalLM"
        )
    return name


def _refuse_options(config: Mapping[str, Any], family_name: str, family: Family, source: str) -> None:
    """Options that change what is computed and that the layers of foreword do not have."""
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedModelError(
            f"{source} is quantised by {method!r}, which foreword does not read; supported: float32, float16 and "
            f"bfloat16 safetensors, and GGUF files"
        )
    defaults: dict[str, Any] = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0}
    if not family.qkv_bias:
        # Llama's option adds a bias to the output projection as well, which no layer here has.
        defaults["attention_bias"] = False
    for option, allowed in defaults.items():
        value = config.get(option)
        if value is not None and value != allowed:
            raise UnsupportedModelError(
                f"{source} sets {option} = {value!r}, which foreword does not compute for {family_name}; "
                f"supported: {allowed!r}"
            )


def _has_window(config: Mapping[str, Any], family: Family) -> bool:
    return bool(config.get("use_sliding_window")) if family.window_needs_flag else True


def _size(config: Mapping[str, Any], option: str, source: str, default: int | None = None) -> int:
    value = config.get(option)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{source}: {option} in config.json is {value!r}; it must be a whole number above 0")
    return value
