"""One form of refusing a value: what it is, what is allowed."""

from pathlib import Path

import numpy as np
import pytest

from foreword.errors import ConfigError
from foreword.validate import Bounds, integer, listed, number, token_ids

WHOLE = Bounds(int, 1, 64, or_none=True)


@pytest.mark.parametrize(
    ("bounds", "allowed"),
    [
        (WHOLE, "a whole number, 1 to 64, or None"),
        (Bounds(int, 2), "a whole number, 2 or above"),
        (Bounds(float, 0, 1), "a number from 0 to 1"),
        (Bounds(float), "a number"),
        (Bounds(bool), "true or false"),
        (Bounds(str, or_none=True), "a text or None"),
        (Bounds(str, choices=("int8", "int4")), "int8, int4"),
    ],
)
def test_what_is_allowed_is_said_in_words(bounds, allowed):
    assert bounds.allowed == allowed
    with pytest.raises(ConfigError, match=f"^x is \\[\\]; allowed: {allowed}$"):
        bounds.checked("x", [])


def test_what_is_allowed_comes_out_as_it_is_kept():
    assert WHOLE.checked("x", None) is None
    assert type(WHOLE.checked("x", np.int64(3))) is int
    assert Bounds(float, 0).checked("x", 2) == 2
    assert Bounds(str).checked("x", Path("a") / "b") == str(Path("a") / "b")
    assert token_ids("x", np.array([1, 2])) == (1, 2)
    assert listed("x", "text", "texts") == ("text",)
    assert number("x", 0.5, lambda x: x > 0, "above 0") == 0.5
    assert integer("x", 3, 0, "0 to 3", highest=3) == 3


@pytest.mark.parametrize("value", [0, 65, 1.0, True, "3", 10**400])
def test_other_whole_numbers_are_refused(value):
    with pytest.raises(ConfigError, match=r"^x is .*; allowed: a whole number, 1 to 64, or None$"):
        WHOLE.checked("x", value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -(10**400), True, "3", None])
def test_a_number_is_finite(value):
    with pytest.raises(ConfigError, match=r"^x is .*; allowed: a number$"):
        Bounds(float).checked("x", value)
    with pytest.raises(ConfigError, match=r"^x is .*; allowed: any"):
        number("x", value, lambda _: True, "any")


def test_a_long_value_is_shown_in_part():
    with pytest.raises(ConfigError) as refused:
        Bounds(bool).checked("x", "a" * 5000)
    assert len(str(refused.value)) < 120
