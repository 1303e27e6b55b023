"""Checksums of files, remembered in the cache folder."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from foreword.cache_folder import cache_folder, cannot_use
from foreword.files import write_whole
from foreword.progress import reported

__all__ = ["cache_folder", "forget", "sha256_of"]

_CHUNK_BYTES = 1 << 22
_MANY_BYTES = 1 << 28  # read faster than a bar is drawn where they are fewer
_remembered: dict[str, tuple[list[object], str]] = {}  # in this process, for a cache that cannot be written


def sha256_of(path: Path, cache: Path, report: Callable[[int, int], None] | None = None) -> str:
    """SHA-256 of a file, in hex; read once, then remembered for as long as size and times of the file stay the same.

    `report(done_bytes, total_bytes)` is called while reading; by default whoever is being reported to is told.
    """
    status = path.stat()
    state: list[object] = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    note = _note(path, cache)
    name = note.name
    if name in _remembered and _remembered[name][0] == state:
        return _remembered[name][1]
    known = _read_json(note)
    if known is not None and known.get("state") == state and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    digest = _hash(path, status.st_size, report or _tell)
    try:
        write_whole(note, json.dumps({"state": state, "sha256": digest}))
    except OSError as error:  # a cache that cannot be written costs time, nothing else
        _remembered[name] = (state, digest)
        cannot_use(cache, error)
    return digest


def forget(path: Path, cache: Path) -> None:
    """Have the file read again when its checksum is next asked for."""
    note = _note(path, cache)
    _remembered.pop(note.name, None)
    with contextlib.suppress(OSError):
        note.unlink()


def _note(path: Path, cache: Path) -> Path:
    return cache / "sums" / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"


def _read_json(path: Path) -> dict[str, object] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _tell(done_bytes: int, total_bytes: int) -> None:
    if total_bytes > _MANY_BYTES:
        reported("reading weights for their checksum", done_bytes, total_bytes)


def _hash(path: Path, size: int, report: Callable[[int, int], None]) -> str:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report(done, size)
    return digest.hexdigest()
