"""Options of a drafter: a frozen dataclass of its own, each field with its bounds and one line of help.

    @dataclass(frozen=True, kw_only=True)
    class RecyclingOptions(DrafterOptions):
        recycling_top_k: int = option(8, "candidates kept for each token", lowest=1, highest=64)

The names are the keys of `speculative_config`; drafters that share an option name it alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from foreword.errors import ConfigError
from foreword.validate import KINDS, Bounds


def option(
    default: Any,
    help: str,
    *,
    lowest: float | None = None,
    highest: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """A field of `DrafterOptions`.

    Args:
        default: where nothing is given; None in a field of type `... | None`.
        help: one line, without a full stop.
        lowest: of a number; None for no bound.
        highest: likewise.
        choices: the texts that are allowed; empty for any.
    """
    bounds = {"lowest": lowest, "highest": highest, "choices": choices}
    return field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True, kw_only=True)
class DrafterOptions:
    """No options; the base of those that have some. Values of a wrong type or size raise `ConfigError`."""

    def __post_init__(self) -> None:
        for name, bounds in bounds_of(type(self)).items():
            object.__setattr__(self, name, bounds.checked(name, getattr(self, name)))

    def refuse_idle(self, name: str, reason: str) -> None:
        """`ConfigError` where an option is set that does nothing beside the others."""
        default = next(one.default for one in fields(self) if one.name == name)
        if getattr(self, name) != default:
            raise ConfigError(f"{name} is {getattr(self, name)!r}, which does nothing: {reason}; leave one of them out")


@cache
def bounds_of(options: type[DrafterOptions]) -> Mapping[str, Bounds]:
    """What each option may be."""
    hints = get_type_hints(options)
    return {one.name: _bounds(one.name, hints[one.name], one.metadata["bounds"]) for one in fields(options)}


def help_of(options: type[DrafterOptions]) -> Mapping[str, str]:
    """Each option's one line of help."""
    return {one.name: one.metadata["help"] for one in fields(options)}


def _bounds(name: str, annotation: Any, limits: Mapping[str, Any]) -> Bounds:
    types = get_args(annotation) or (annotation,)
    kinds = [one for one in types if one is not type(None)]
    if len(kinds) != 1 or kinds[0] not in KINDS:
        raise ConfigError(
            f"option {name} is of type {annotation}; allowed: int, float, bool or str, each also with '| None'"
        )
    return Bounds(kinds[0], **limits, or_none=type(None) in types)
