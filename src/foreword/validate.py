"""Checks of the values that users give, and the one form of refusing them: what is wrong, what is allowed.

Each returns the value as the library keeps it (a plain int, a text, a tuple) and raises `ConfigError` for any other.
"""

import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from foreword.errors import ConfigError

_LONGEST = 60  # characters of a wrong value that a message shows


@dataclass(frozen=True)
class Bounds:
    """What a value of one type may be.

    Args:
        kind: `int`, `float`, `bool` or `str`; a path is a text, a whole number is a number, true and false are neither.
        lowest: of a number; None for no bound but that it is finite.
        highest: likewise.
        choices: the texts there are; empty for any.
        or_none: whether None is allowed too.
    """

    kind: type
    lowest: float | None = None
    highest: float | None = None
    choices: Sequence[str] = ()
    or_none: bool = False

    @property
    def allowed(self) -> str:
        """For messages and tables: "a whole number, 1 to 64, or None"."""
        if self.choices:
            words = ", ".join(self.choices)
        elif self.kind in (int, float):
            words = self._numbers()
        else:
            words = {bool: "true or false", str: "a text"}[self.kind]
        comma = "," if "," in words or " to " in words else ""
        return f"{words}{comma} or None" if self.or_none else words

    def checked(self, name: str, value: Any) -> Any:
        """The value, where it is allowed."""
        if value is None and self.or_none:
            return None
        found = _READERS[self.kind](value)
        if found is None or not self._holds(found):
            raise refusal(name, value, self.allowed)
        return found

    def _holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.kind not in (int, float):
            return True
        lowest = -sys.float_info.max if self.lowest is None else self.lowest
        highest = sys.float_info.max if self.highest is None else self.highest
        return lowest <= value <= highest  # false for NaN

    def _numbers(self) -> str:
        words = "a whole number" if self.kind is int else "a number"
        comma = ", " if self.kind is int else " from "
        if self.lowest is None:
            return words
        if self.highest is None:
            return f"{words}, {self.lowest:g} or above"
        return f"{words}{comma}{self.lowest:g} to {self.highest:g}"


def refusal(name: str, value: Any, allowed: str) -> ConfigError:
    """The error for a value: what it is, shortened, and what is allowed."""
    return ConfigError(f"{name} is {shown(value)}; allowed: {allowed}")


def shown(value: Any, most: int = _LONGEST) -> str:
    """A value for a message, however long it is: at most so many characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, or too deep
        return f"a very long {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def integer(name: str, value: Any, lowest: int, allowed: str, highest: int | None = None) -> int:
    """As a plain int: numpy's are taken too, True and False are not."""
    number = _as_integer(value)
    if number is None:
        raise refusal(name, value, f"{allowed}, a whole number")
    if number < lowest or (highest is not None and number > highest):
        raise refusal(name, value, allowed)
    return number


def number(name: str, value: Any, is_allowed: Callable[[float], bool], allowed: str) -> float:
    """A finite Python number that `is_allowed`; true and false are none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Whole numbers beyond what a float holds are refused like infinity; NaN compares false.
    if not is_number or not abs(value) <= sys.float_info.max or not is_allowed(value):
        raise refusal(name, value, f"{allowed}{'' if is_number else ', a Python int or float'}")
    return value


def listed(name: str, values: Any, allowed: str) -> tuple[Any, ...]:
    """A list as a tuple; None is an empty one, a text alone a list of it."""
    if values is None or isinstance(values, str):
        return () if values is None else (values,)
    try:
        return tuple(values)
    except TypeError as error:
        raise refusal(name, values, f"a list of {allowed}") from error


def token_ids(name: str, ids: Any) -> tuple[int, ...]:
    """As plain ints, 0 or above."""
    return tuple(integer(f"a token id of {name}", token, 0, "0 or above") for token in listed(name, ids, "token ids"))


def _as_integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _as_number(value: Any) -> float | None:
    whole = _as_integer(value)
    if whole is not None:
        return whole
    return value if isinstance(value, float) else None


def _as_text(value: Any) -> str | None:
    path = fspath(value) if isinstance(value, PathLike) else value
    return path if isinstance(path, str) else None


def _as_flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_READERS: dict[type, Callable[[Any], Any]] = {int: _as_integer, float: _as_number, str: _as_text, bool: _as_flag}
KINDS = tuple(_READERS)  # types that `Bounds` knows
