"""What differs from layer to layer, as short as it can be said."""

from collections.abc import Sequence

from foreword.config import LayerSpec, RopeSpec

MAX_LAYERS = 4096  # that are described one by one: no damaged number of them takes the memory


def layer_table(layers: Sequence[LayerSpec], rope: RopeSpec) -> tuple[LayerSpec, ...]:
    """`ModelSpec.layers` of these: empty where all of them attend to everything with `rope`."""
    return () if all(layer == LayerSpec(rope=rope) for layer in layers) else tuple(layers)


def make_layers(
    windows: Sequence[int | None], ropes: Sequence[RopeSpec | None], context_len: int
) -> tuple[LayerSpec, ...]:
    """One a layer; a window that the context never outgrows is none."""
    return tuple(
        LayerSpec(window=window if window is not None and window < context_len else None, rope=rope)
        for window, rope in zip(windows, ropes, strict=True)
    )
