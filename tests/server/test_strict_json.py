"""Bodies that Python would parse and no answer could repeat."""

import json

import pytest

from foreword.server.errors import ApiError
from foreword.server.strict_json import check_json


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": [-Infinity]}', "Infinity"),
        (b'{"a": 1e999}', "1e999"),
        (b'{"a": -1E+400}', "1E"),
        (b'{"a": ' + b"9" * 400 + b"}", "400 digits"),
        (b'{"a": ' + b"9" * 6000 + b"}", "6000 digits"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\uDFFF": 1}', "surrogate"),
    ],
)
def test_refused(body, words):
    with pytest.raises(ApiError, match=words) as told:
        check_json(body)
    assert told.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a": "NaN and Infinity, 1e999"}',
        b'{"a": 1e300, "b": "\\ud83e\\udd84"}',
        json.dumps({"a": "\U0001f984é"}).encode(),
        b"\xff\xfeNaN",
    ],
)
def test_left_to_the_parser(body):
    check_json(body)
