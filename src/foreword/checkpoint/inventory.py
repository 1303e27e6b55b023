"""Is everything there that the spec says, in the right shape, and nothing that would be silently left out?"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from foreword.checkpoint.name_map import expected_shapes, file_name
from foreword.config import ModelSpec
from foreword.errors import CheckpointError

_SHOWN = 3  # names that a message lists


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: rows [begin, end) of the file's tensor, or in several tensors, one row each."""

    names: tuple[str, ...]
    begin: int = 0
    end: int | None = None  # None: to the last row
    is_stacked: bool = False


def check_inventory(
    source: str,
    spec: ModelSpec,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    ignored: Iterable[str] = (),
) -> dict[str, Place]:
    """Compare a file's tensors with what the spec asks for; returns canonical name -> place in the file.

    Args:
        source: the model's name for people.
        spec: what the model should be.
        names: the family's name table for this file format.
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
    places, expected = _places(spec, names)
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} of the {len(expected)} tensors its configuration asks for: "
            f"{_list(missing)}; the download may be incomplete: fetch the model again"
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise CheckpointError(
                f"{source}: tensor {name} has shape {_show(shapes[name])}, but its configuration asks for "
                f"{_show(shape)}; configuration and weights do not belong together"
            )
    _refuse_unused(source, spec, names, set(expected), shapes, tuple(ignored))
    return places


def _places(spec: ModelSpec, names: Mapping[str, str]) -> tuple[dict[str, Place], dict[str, tuple[int, ...]]]:
    """Where each tensor should lie, and which tensors of which shapes the file should have."""
    found: dict[str, tuple[str, int]] = {}  # canonical name -> name in the file, first row
    expected: dict[str, tuple[int, ...]] = {}
    places: dict[str, Place] = {}
    shapes = expected_shapes(spec)
    for canonical, shape in shapes.items():
        name = file_name(names, canonical)
        if "{h}" in name:
            heads = tuple(name.replace("{h}", str(head)) for head in range(shape[0]))
            places[canonical] = Place(heads, is_stacked=True)
            expected |= dict.fromkeys(heads, shape[1:])
            continue
        begin = expected[name][0] if name in expected else 0
        found[canonical] = (name, begin)
        expected[name] = (begin + shape[0], *shape[1:])
    for canonical, (name, begin) in found.items():
        rows = shapes[canonical][0]
        is_whole = rows == expected[name][0]
        places[canonical] = Place((name,)) if is_whole else Place((name,), begin, begin + rows)
    return {canonical: places[canonical] for canonical in shapes}, expected


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
