"""Reading a model's JSON files with errors that name the file."""

import json
from pathlib import Path
from typing import Any

from foreword.errors import CheckpointError

# What `json.loads` raises: also for bytes that are no UTF-8, numbers of thousands of digits, tables in tables without end.
JSON_ERRORS = (ValueError, RecursionError)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: the file cannot be read or does not hold an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, *JSON_ERRORS) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not a table of options; fetch it again")
    return value


def read_json_if_any(path: Path) -> dict[str, Any]:
    """As `read_json`; an empty table when there is no such file."""
    return read_json(path) if path.is_file() else {}
