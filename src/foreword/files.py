"""Files that are there whole or not at all, and one writer at a time.

A file is written under another name beside its place, flushed to the disk and renamed. Two processes that want the same
file take turns at a lock; the second finds it there.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PART_SUFFIX = ".part"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the right to write `path`: waits for other processes and threads that hold it.

    The operating system frees the lock when its holder dies, so a killed process blocks nobody.
    """
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock"), thread_local=False):
        yield


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that appears as `path` only when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=path.name + ".", suffix=PART_SUFFIX, dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """A text as a file that appears only when it is whole."""
    with whole_file(path) as file:
        file.write(text.encode())


def sweep_parts(path: Path) -> None:
    """Delete what cut writes of `path` left behind. Call it only while holding `locked(path)`."""
    for part in path.parent.glob(f"{path.name}.*{PART_SUFFIX}"):
        part.unlink(missing_ok=True)
