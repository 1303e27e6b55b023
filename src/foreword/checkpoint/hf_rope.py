"""Rotary embeddings as config.json says them: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from foreword.checkpoint.typed_keys import Options
from foreword.config import Llama3RopeScaling, QueryTemperature, RopeSpec, YarnRopeScaling, short_repr
from foreword.errors import UnsupportedModelError

logger = logging.getLogger(__name__)

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")


def rope_options(outer: Options) -> Options:
    """The table of the rotary embedding, or of several of them."""
    options = outer.table("rope_parameters")
    return options if options.values else outer.table("rope_scaling")


def rope_of(options: Options, outer: Options, head_dim: int) -> RopeSpec:
    """One of them; what its own table leaves out may stand in config.json itself.

    Args:
        options: its own table.
        outer: config.json.
        head_dim: of which `partial_rotary_factor` is a part.

    Raises:
        CheckpointError: values that are none.
        ConfigError: numbers that no rotary embedding has.
        UnsupportedModelError: one that foreword does not compute.
    """
    theta = (options if options.get("rope_theta") is not None else outer).number("rope_theta", 10_000.0)
    kind = options.text("rope_type" if options.get("rope_type") is not None else "type", "default")
    if kind in ("su", "yarn") and options.get("short_factor") is not None:
        kind = "longrope"  # its names in Phi-3's first files
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{outer.source} uses rope type {short_repr(kind)}, which foreword does not compute; supported: {', '.join(ROPE_TYPES)}"
        )
    shared: dict[str, Any] = {"theta": theta, **_partial(options, outer, head_dim), **_temperature(options, outer)}
    if kind == "linear":
        return RopeSpec(**shared, linear_factor=options.number("factor"))
    if kind == "llama3":
        return RopeSpec(**shared, llama3=_llama3(options))
    if kind == "yarn":
        return _yarn(options, outer, shared)
    return RopeSpec(**shared) if kind == "default" else _longrope(options, outer, shared)


def _partial(options: Options, outer: Options, head_dim: int) -> dict[str, int]:
    place = options if options.get("partial_rotary_factor") is not None else outer
    share = place.number("partial_rotary_factor", 1.0)
    rotated = int(head_dim * share)
    return {} if share == 1.0 or not head_dim else {"num_rotated": rotated}


def _temperature(options: Options, outer: Options) -> dict[str, QueryTemperature]:
    if not options.get("llama_4_scaling_beta"):
        return {}
    original = original_len(options, outer)
    return {"temperature": QueryTemperature(beta=options.number("llama_4_scaling_beta"), original_context_len=original)}


def original_len(options: Options, outer: Options) -> int:
    """Positions that the model was first trained on. Phi-3 has them in config.json itself, which is then meant."""
    key = "original_max_position_embeddings"
    place = outer if outer.get(key) is not None else options
    return place.size(key, outer.size("max_position_embeddings"))


def _llama3(options: Options) -> Llama3RopeScaling:
    return Llama3RopeScaling(
        factor=options.number("factor"),
        low_freq_factor=options.number("low_freq_factor"),
        high_freq_factor=options.number("high_freq_factor"),
        original_context_len=options.size("original_max_position_embeddings"),
    )


def _yarn(options: Options, outer: Options, shared: Mapping[str, Any]) -> RopeSpec:
    original = original_len(options, outer)
    factor = options.number("factor", outer.size("max_position_embeddings") / original)
    scaling = YarnRopeScaling(
        factor=factor,
        original_context_len=original,
        beta_fast=options.number("beta_fast", 32.0) if options.get("beta_fast") else 32.0,
        beta_slow=options.number("beta_slow", 1.0) if options.get("beta_slow") else 1.0,
        rounds_range=options.flag("truncate", True),
    )
    scales = [options.number(key) if options.get(key) else 0.0 for key in ("mscale", "mscale_all_dim")]
    magnitude = yarn_magnitude(factor)
    if all(scales):
        magnitude = yarn_magnitude(factor, scales[0]) / yarn_magnitude(factor, scales[1])
    if options.get("attention_factor") is not None:
        magnitude = options.number("attention_factor")
    return RopeSpec(**shared, yarn=scaling, magnitude=magnitude)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """What YaRN multiplies cosines and sines by [peng23]."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _longrope(options: Options, outer: Options, shared: Mapping[str, Any]) -> RopeSpec:
    """With the factors of short texts: `layers_from_config` cuts the context to where they end."""
    original = original_len(options, outer)
    factor = options.number("factor", outer.size("max_position_embeddings") / original)
    magnitude = longrope_magnitude(factor, original)
    if options.get("attention_factor") is not None:
        magnitude = options.number("attention_factor")
    divisors = options.get("short_factor")
    if not isinstance(divisors, list | tuple) or not all(type(one) in (int, float) for one in divisors):
        raise options.wrong("short_factor", "a list of numbers")
    return RopeSpec(**shared, divisors=tuple(float(one) for one in divisors), magnitude=magnitude)


def longrope_magnitude(factor: float, original_context_len: int) -> float:
    """What longrope multiplies cosines and sines by [ding24]."""
    return math.sqrt(1 + math.log(factor) / math.log(original_context_len)) if factor > 1.0 else 1.0


def longrope_context(source: str, context_len: int, original: int) -> int:
    """Longrope has other factors for longer texts: a request would have to be read again when it outgrows the first ones."""
    if original < context_len:
        logger.warning(
            f"{source}: longrope changes for texts beyond {original} tokens; its context is cut from {context_len} "
            f"to {original} tokens"
        )
    return min(original, context_len)
