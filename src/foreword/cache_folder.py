"""Where the cache folder is, and one line where it cannot be used.

Nothing in it is needed: without a cache everything works and takes longer.
"""

import getpass
import logging
import os
import sys
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

_told: set[str] = set()


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """The folder for downloads and converted weights; made when something is written to it.

    First of: the argument, the variable FOREWORD_CACHE, `foreword` in the user's cache folder of the platform. Where the
    user has no home, a folder of the user's own among the temporary files.
    """
    chosen = cache_dir or os.environ.get("FOREWORD_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        return _user_cache() / "foreword"
    except RuntimeError as error:  # neither HOME nor an entry in the system's list of users
        folder = _temporary()
        _tell_once("no home", f"{error}: the cache is in {folder}; set FOREWORD_CACHE to a folder to keep it elsewhere")
        return folder


def cannot_use(folder: Path, reason: object) -> None:
    """Say that the cache cannot be read or written: once for a folder, however many things were to go there."""
    _tell_once(
        str(folder),
        f"the cache folder {folder} cannot be used ({reason}): what is kept there is made again at every load; "
        f"set FOREWORD_CACHE to a folder that can be written",
    )


def _tell_once(key: str, message: str) -> None:
    if key not in _told:
        _told.add(key)
        logger.warning(message)


def _user_cache() -> Path:
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ".cache"


def _temporary() -> Path:
    """A folder that nobody else can write to: what lies in a cache decides what models say."""
    folder = Path(tempfile.gettempdir()) / f"foreword-{_user()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not hasattr(os, "getuid") or (status.st_uid == os.getuid() and status.st_mode & 0o170077 == 0o040000):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="foreword-"))


def _user() -> str:
    try:
        return str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "user"
