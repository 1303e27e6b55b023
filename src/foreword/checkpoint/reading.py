"""Where damaged input ends: whatever reading it raises becomes one `CheckpointError` that names the source.

Readers say what is wrong where they know it. This is for what nobody thought of: files come from anywhere.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from foreword.errors import CheckpointError, ForewordError

_MOST_SHOWN = 200  # characters of the reason
# What reading can raise of its own where a value is of another type, size or depth than anyone expects.
_DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


@contextmanager
def reading(source: object) -> Iterator[None]:
    """Errors of foreword pass; `CheckpointError` for what damage raises otherwise."""
    try:
        yield
    except ForewordError:
        raise
    except BaseException as error:
        if not isinstance(error, _DAMAGE) and not _is_panic(error):
            raise
        raise CheckpointError(
            f"{source} cannot be read: {reason_of(error)}; the files are damaged, or another program's"
        ) from error


def _is_panic(error: BaseException) -> bool:
    """Whether a library in Rust gave up, as tokenizers does on some damaged files: no `Exception`, and of a type without a home."""
    return type(error).__name__ == "PanicException"


def reason_of(error: BaseException) -> str:
    """The first line of an error, with its kind where that says more."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else ""
    shown = reason if len(reason) <= _MOST_SHOWN else reason[: _MOST_SHOWN - 3] + "..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
