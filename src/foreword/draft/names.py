"""How drafters are written: NAME, NAME=PATH, several with commas between.

A comma may stand in a path: of `draft_model=/a,b` the longest beginning that is a file or folder is the path. Where none
is, the path ends at the first comma.
"""

import re
from pathlib import Path

from foreword.draft.registry import check_drafter_name, drafter_names
from foreword.errors import ConfigError, UnknownNameError

_SIZE = re.compile(r"@\d+$")  # a number of tokens after a path, as `bench` takes it


def split_list(text: str) -> list[str]:
    """The parts of a list with commas between, the commas of paths kept; parts may be empty."""
    pieces, parts, first = text.split(","), [], 0
    while first < len(pieces):
        end = next((end for end in _ends(pieces, first) if _is_path(pieces[first:end])), first + 1)
        parts.append(",".join(pieces[first:end]).strip())
        first = end
    return parts


def parse_method(method: str) -> list[tuple[str, str | None]]:
    """(name, path) of each drafter that a method names; `ConfigError` for a name that is none."""
    parts = split_list(method)
    found = []
    for before, part in zip(["", *parts], parts, strict=False):
        name, equals, path = part.partition("=")
        if "=" in before and name not in drafter_names():
            raise _cut_path(before, part)
        check_drafter_name(name)
        if equals and not path:
            raise ConfigError(
                f"drafter is {method!r}, and {name}= names no path; give the path, or leave the equals sign out"
            )
        found.append((name, path or None))
    return found


def bare_names(method: str) -> str:
    """A method without its paths, for messages."""
    return ",".join(name for name, _ in parse_method(method))


def _ends(pieces: list[str], first: int) -> range:
    """Where a path that begins in a piece may end beyond it, the longest first."""
    return range(len(pieces), first + 1, -1) if "=" in pieces[first] else range(0)


def _is_path(pieces: list[str]) -> bool:
    """Whether what follows the first or the last equals sign of the first piece is there: `NAME=PATH`, `NAME+NAME=PATH`."""
    part = _SIZE.sub("", ",".join(pieces))
    starts = pieces[0].index("=") + 1, pieces[0].rindex("=") + 1
    return any(part[start:] and _exists(part[start:]) for start in starts)


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # a name too long, a zero byte, no home folder
        return False


def _cut_path(before: str, part: str) -> ConfigError:
    path = f"{before},{part}".partition("=")[2]
    unknown = UnknownNameError("drafter", part.partition("=")[0], drafter_names())
    return ConfigError(f"{unknown}. If the comma is part of the path: there is no file or folder {path!r}")
