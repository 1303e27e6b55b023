"""What config.json says of single layers: windows, and which rotary embedding each has."""

from collections.abc import Mapping

from foreword.checkpoint.families import Family
from foreword.checkpoint.hf_rope import longrope_context, original_len, rope_of, rope_options
from foreword.checkpoint.layer_table import MAX_LAYERS, make_layers
from foreword.checkpoint.typed_keys import Options
from foreword.config import LayerSpec, RopeSpec
from foreword.errors import UnsupportedModelError

_FULL, _WINDOWED = "full_attention", "sliding_attention"


def layers_from_config(
    options: Options, family: Family, num_layers: int, head_dim: int, context_len: int
) -> tuple[RopeSpec, tuple[LayerSpec, ...], int]:
    """The main rotary embedding, every layer's own, and the context that is left.

    Raises:
        CheckpointError: values that are none.
        ConfigError: numbers that no rotary embedding has.
        UnsupportedModelError: one that foreword does not compute.
    """
    full, windowed = _ropes(options, family, head_dim)
    if full.divisors is not None:
        context_len = longrope_context(options.source, context_len, original_len(rope_options(options), options))
    windows = _windows(options, family, min(num_layers, MAX_LAYERS))
    has_rope = _has_rope(options, family, windows)
    ropes = [
        (full if window is None else windowed) if turns else None
        for window, turns in zip(windows, has_rope, strict=True)
    ]
    return full, make_layers(windows, ropes, context_len), context_len


def _ropes(options: Options, family: Family, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Of layers that see everything, and of those with a window."""
    table = rope_options(options)
    nested = {kind: value for kind, value in table.values.items() if isinstance(value, Mapping)}
    if nested and not (family.rope_by_kind and nested.keys() <= {_FULL, _WINDOWED}):
        raise UnsupportedModelError(f"{options.source} has several rotary embeddings; supported: one for all layers")
    if nested:
        full, windowed = (rope_of(table.table(kind), options, head_dim) for kind in (_FULL, _WINDOWED))
        return full, windowed
    full = rope_of(table, options, head_dim)
    if not family.rope_by_kind:
        return full, full
    return full, RopeSpec(theta=options.number("rope_local_base_freq", full.theta), num_rotated=full.num_rotated)


def _windows(options: Options, family: Family, num_layers: int) -> list[int | None]:
    is_off = family.windows == "flag" and not options.flag("use_sliding_window")
    if is_off or options.get("sliding_window") is None:
        return [None] * num_layers
    window = options.size("sliding_window")
    if family.windows == "none":
        return [None] * num_layers
    kinds = options.texts("layer_types") if family.windows != "all" else ()
    if kinds:
        if len(kinds) < num_layers or not set(kinds) <= {_FULL, _WINDOWED}:
            raise options.wrong("layer_types", f"a list of {_FULL} and {_WINDOWED}, one a layer")
        return [window if kind == _WINDOWED else None for kind in kinds[:num_layers]]
    if family.windows == "flag":
        if family.no_rope == "listed":
            raise options.wrong("layer_types", "a list that says which layers have the window")
        first = options.whole("max_window_layers", 28)
        return [window if i >= first else None for i in range(num_layers)]
    return periodic(window, options.whole("sliding_window_pattern", family.window_period), num_layers)


def periodic(window: int, period: int, num_layers: int) -> list[int | None]:
    """Windows of all layers but every `period`-th; of all where that is 0."""
    return [None if period and (i + 1) % period == 0 else window for i in range(num_layers)]


def _has_rope(options: Options, family: Family, windows: list[int | None]) -> list[bool]:
    if family.no_rope == "unwindowed":
        return [window is not None for window in windows]
    if family.no_rope == "listed":
        return _listed(options, len(windows))
    if family.no_rope == "optional":
        return [options.text("position_embedding_type", "nope") == "rope"] * len(windows)
    return [True] * len(windows)


def _listed(options: Options, num_layers: int) -> list[bool]:
    listed = options.get("no_rope_layers")
    if listed is None:
        period = options.size("no_rope_layer_interval", 4)
        return [(i + 1) % period != 0 for i in range(num_layers)]
    if not isinstance(listed, list | tuple) or len(listed) < num_layers or not all(one in (0, 1) for one in listed):
        raise options.wrong("no_rope_layers", f"a list of {num_layers} zeros and ones")
    return [bool(one) for one in listed[:num_layers]]
