"""Files that are there whole or not at all, and one writer at a time.

A file is written under another name beside its place, flushed to the disk and renamed. Two processes that want the same
file take turns at a lock; the second finds it there.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PART_SUFFIX = ".part"
_OLD_S = 24 * 3600.0  # after which a part that is not locked is nobody's


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the right to write `path`: waits for other processes and threads that hold it.

    The operating system frees the lock when its holder dies, so a killed process blocks no other.
    """
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock"), thread_local=False):
        yield


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that appears as `path` only when the block ends without an error.

    Who may read it is as `open` has it: by the umask, or as it was where it replaces a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART_SUFFIX}")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with whole_file(path) as file:
        file.write(text.encode())


def put_aside(path: Path) -> Path:
    """Take a damaged file out of the way; where it is now. Nothing is lost that somebody may still want."""
    aside = path.with_name(path.name + ".damaged")
    path.replace(aside)
    return aside


def sweep_parts(path: Path) -> None:
    """Delete what cut writes of `path` left behind. Call it only while holding `locked(path)`."""
    for part in path.parent.glob(f"{path.name}.*{PART_SUFFIX}"):
        part.unlink(missing_ok=True)


def sweep_folder(folder: Path) -> int:
    """Delete what killed writers left in a folder; how many files. What may still be written stays.

    A part goes where its file's lock is free, or, where there is no lock, a day after it was last written to.
    """
    from filelock import FileLock, Timeout

    num_swept = 0
    for part in _parts(folder):
        lock = folder / f"{part.name.removesuffix(PART_SUFFIX).rpartition('.')[0]}.lock"
        with contextlib.suppress(OSError, Timeout):
            if lock.is_file():
                with FileLock(lock, timeout=0, thread_local=False):
                    part.unlink()
            elif time.time() - part.stat().st_mtime > _OLD_S:
                part.unlink()
            num_swept += not part.exists()
    return num_swept


def _parts(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob(f"*{PART_SUFFIX}"))
    except OSError:
        return []


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file that only grows; what a kill left of a last one is cut off the file."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    return data[:whole].splitlines()
