"""How much a chat template may do: more than any that is meant, less than what takes for ever."""

from typing import Any

MOST_TEXT = 20_000_000  # characters: more than any context holds
_MOST_STEPS = 2_000_000  # of all its counted loops together
_MOST_DIGITS = 10_000  # bits of a number, roughly


class EndlessTemplateError(Exception):
    """A template that goes on and on; says what it did."""


class BoundedRange:
    """Python's `range` for one rendering; all of its ranges together have a bound."""

    def __init__(self) -> None:
        self._steps = 0

    def __call__(self, *bounds: int) -> range:
        """As `range`."""
        made = range(*bounds)
        self._steps += len(made)
        if self._steps > _MOST_STEPS:
            raise EndlessTemplateError(f"counts further than {_MOST_STEPS:,} steps")
        return made


def check_product(left: Any, right: Any) -> None:
    """Before `left * right`."""
    for one, times in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(times, int) and len(one) * times > MOST_TEXT:
            raise EndlessTemplateError(f"writes more than {MOST_TEXT:,} characters")
    _check_digits(_bits(left) + _bits(right))


def check_power(left: Any, right: Any) -> None:
    """Before `left ** right`."""
    if isinstance(right, int):
        _check_digits(_bits(left) * abs(right))


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 1


def _check_digits(bits: int) -> None:
    if bits > _MOST_DIGITS:
        raise EndlessTemplateError("computes a number of thousands of digits")
