"""What a path that a user gives means here, and what is there: also for texts that can be no path."""

import stat
from os import stat_result
from pathlib import Path


def local_path(name: str | Path) -> Path:
    """`~` is the user's home, where there is one."""
    path = Path(name)
    try:
        return path.expanduser()
    except RuntimeError:  # no home, or no such user
        return path


def is_folder(path: Path) -> bool:
    """Whether there is a folder of this name. `PermissionError` where nobody may look."""
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_there(path: Path) -> bool:
    """Whether there is anything of this name. `PermissionError` where nobody may look."""
    return _status(path) is not None


def _status(path: Path) -> stat_result | None:
    try:
        return path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):  # not there, or no name that a file can have
        return None
