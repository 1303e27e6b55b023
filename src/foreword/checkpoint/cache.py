"""The cache folder: where it is, and remembered checksums of files."""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from foreword.files import write_whole

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 22


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """The folder for downloads and converted weights; made when something is written to it.

    First of: the argument, the variable FOREWORD_CACHE, `foreword` in the user's cache folder of the platform.
    """
    chosen = cache_dir or os.environ.get("FOREWORD_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return _user_cache() / "foreword"


def _user_cache() -> Path:
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path.home() / ".cache"


def sha256_of(path: Path, cache: Path, report: Callable[[int, int], None] | None = None) -> str:
    """SHA-256 of a file, in hex; read once, then remembered for as long as size and times of the file stay the same.

    `report(done_bytes, total_bytes)` is called while reading.
    """
    status = path.stat()
    state = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    note = cache / "sums" / (hashlib.sha256(state[0].encode()).hexdigest()[:32] + ".json")
    known = _read_json(note)
    if known is not None and known.get("state") == state:
        return str(known["sha256"])
    digest = _hash(path, status.st_size, report)
    try:
        write_whole(note, json.dumps({"state": state, "sha256": digest}))
    except OSError as error:  # a cache that cannot be written costs time, nothing else
        logger.warning("cannot remember the checksum of %s: %s", path, error)
    return digest


def _read_json(path: Path) -> dict[str, object] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _hash(path: Path, size: int, report: Callable[[int, int], None] | None) -> str:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if report:
                report(done, size)
    return digest.hexdigest()
