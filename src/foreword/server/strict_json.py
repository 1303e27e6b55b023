"""JSON that can be answered in JSON: finite numbers and whole characters.

Python's parser also takes NaN, numbers beyond all bounds, and halves of surrogate pairs. Whatever repeats them to a client could
not be written. So they are refused before anything reads the body.
"""

import json
import math
import re
from typing import Any

from foreword.server.errors import ApiError, invalid

# Only a body with one of these can have such a value, and is read twice for it.
_SUSPECT = re.compile(rb"NaN|Infinity|[eE]\+?\d{3}|\d{300}|\\u[dD][89a-fA-F]")


def check_json(body: bytes) -> None:
    """`ApiError` for a body with a value that JSON cannot hold. What is no JSON at all is told by whoever parses it."""
    if not _SUSPECT.search(body):
        return
    try:
        found = json.loads(body, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise invalid(
            "the body has half of a surrogate pair, which is no character; send text as UTF-8, or both halves"
        ) from None
    except ApiError:
        raise
    except (ValueError, RecursionError):
        return


def _no_constant(name: str) -> Any:
    raise invalid(f"the body has {name}, which is no JSON; send a finite number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise invalid(f"the body has the number {text[:40]}, which no float holds; send a smaller one")
    return value


def _whole(text: str) -> int:
    if len(text) > 300:
        raise invalid(f"the body has a number of {len(text)} digits; send a smaller one")
    return int(text)
