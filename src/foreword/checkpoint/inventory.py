"""Is everything there that the spec says, in the right shape, and nothing that would be silently left out?"""

import re
from collections.abc import Iterable, Mapping

from foreword.checkpoint.name_map import expected_shapes, file_name
from foreword.config import ModelSpec
from foreword.errors import CheckpointError

_SHOWN = 3  # names that a message lists


def check_inventory(
    source: str,
    spec: ModelSpec,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    ignored: Iterable[str] = (),
) -> dict[str, str]:
    """Compare a file's tensors with what the spec asks for; returns canonical name -> name in the file.

    Args:
        source: the model's name for people.
        spec: what the model should be.
        names: the file format's name table.
        shapes: name in the file -> shape, (out, in).
        ignored: ends of names inside a layer that carry no parameters.

    Raises:
        CheckpointError: a tensor is missing or has another shape, or a layer has parameters that it should not have.
    """
    if spec.num_layers > len(shapes):  # a damaged number, not worth listing its layers
        raise CheckpointError(
            f"{source} holds {len(shapes)} tensors, too few for the {spec.num_layers} layers that its configuration "
            f"asks for; the download may be incomplete: fetch the model again"
        )
    expected = {name: (file_name(names, name), shape) for name, shape in expected_shapes(spec).items()}
    missing = [name for name, _ in expected.values() if name not in shapes]
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} of the {len(expected)} tensors its configuration asks for: "
            f"{_list(missing)}; the download may be incomplete: fetch the model again"
        )
    for name, shape in expected.values():
        if shapes[name] != shape:
            raise CheckpointError(
                f"{source}: tensor {name} has shape {_show(shapes[name])}, but its configuration asks for "
                f"{_show(shape)}; configuration and weights do not belong together"
            )
    _refuse_unused(source, spec, names, {name for name, _ in expected.values()}, shapes, tuple(ignored))
    return {canonical: name for canonical, (name, _) in expected.items()}


def _refuse_unused(
    source: str,
    spec: ModelSpec,
    names: Mapping[str, str],
    used: set[str],
    shapes: Mapping[str, tuple[int, ...]],
    ignored: tuple[str, ...],
) -> None:
    """A layer's parameter that is left out would change the model's output, so it is refused by name."""
    prefix = names["layers.{i}.q.weight"].split("{i}")[0]
    layer = re.compile(re.escape(prefix) + r"(\d+)\.")
    unused = []
    for name in shapes:
        match = layer.match(name)
        if match and int(match.group(1)) < spec.num_layers and name not in used and not name.endswith(ignored):
            unused.append(name)
    if unused:
        raise CheckpointError(
            f"{source} has parameters that no {spec.family} layer has: {_list(sorted(unused))}; leaving them out would "
            f"change the model's output"
        )


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _show(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
