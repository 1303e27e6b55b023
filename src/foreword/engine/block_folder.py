"""A folder of small files that may all be lost: written whole, bounded in bytes, those used longest ago removed first.

Several processes may share it. The time of a file's last change says when it was used last.
"""

import contextlib
import logging
import os
import re
import secrets
import time
from pathlib import Path

from foreword.files import PART_SUFFIX

logger = logging.getLogger(__name__)

_OLD_S = 24 * 3600.0  # after which a part is nobody's
_WRITES_UNSEEN = 64  # after so many the folder is looked at in any case
_DEPTH_NS = 1_000_000  # what is found after something else counts as used so much earlier, and is removed before it


class BlockFolder:
    """Reads and writes files by name. No error of the operating system leaves it: it says so once and goes on.

    Args:
        folder: made, for its owner alone, where it is not there.
        pattern: of the files' whole names. Others in the folder are never touched, whatever they are.
        max_bytes: most that the files may take together.
    """

    def __init__(self, folder: Path, pattern: str, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._pattern = re.compile(rf"{pattern}(?P<part>\.[0-9a-f]{{16}}{re.escape(PART_SUFFIX)})?")
        self.num_bytes = 0  # of all files, as of the last look
        self._seen_ns = -1  # of the folder, then
        self._num_written = 0
        self._is_writable = True
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            self._make_room(0)
        except OSError as error:
            self._stop(error)

    def read(self, name: str, num_bytes: int) -> bytes | None:
        """A file's bytes, `num_bytes + 1` at most; None where it cannot be read."""
        try:
            with (self.folder / name).open("rb") as file:
                return file.read(num_bytes + 1)
        except OSError:
            return None

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            return (self.folder / name).exists()
        except OSError:  # the folder may not be searched
            return False

    def use(self, name: str, used_ns: int, depth: int) -> bool:
        """Note that a file was used, with `depth` others before it; False where there is none."""
        try:
            os.utime(self.folder / name, ns=(used_ns, used_ns - depth * _DEPTH_NS))
        except OSError:
            return self.has(name)  # there, and not ours to change
        return True

    def write(self, name: str, parts: list[bytes | memoryview], used_ns: int, depth: int) -> bool:
        """Write a file, as used then; older ones make way. False where that cannot be done."""
        size = sum(len(part) for part in parts)
        if not self._is_writable or size > self.max_bytes:
            return False
        try:
            self._make_room(size)
            self._write_whole(name, parts, used_ns - depth * _DEPTH_NS)
            self.num_bytes += size
            self._num_written += 1
            self._seen_ns = self.folder.stat().st_mtime_ns
        except OSError as error:
            self._stop(error)
        return self._is_writable

    def remove(self, name: str) -> None:
        """Remove a file, if that can be done."""
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()

    @property
    def is_writable(self) -> bool:
        """False after the first file that could not be written."""
        return self._is_writable

    def _write_whole(self, name: str, parts: list[bytes | memoryview], changed_ns: int) -> None:
        # Not flushed to the disk: what a loss of power damages is noticed when it is read.
        part = self.folder / f"{name}.{secrets.token_hex(8)}{PART_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
                for data in parts:
                    file.write(data)
            os.utime(part, ns=(changed_ns, changed_ns))
            part.replace(self.folder / name)
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove files until there is room for `size` bytes; a sixteenth more, so that this is not done at every write."""
        # Another process was here, or may have been at the moment of a write of ours.
        if self.folder.stat().st_mtime_ns != self._seen_ns or self._num_written % _WRITES_UNSEEN == 0:
            self._look()
        if self.num_bytes + size <= self.max_bytes:
            return
        files = sorted(self._files())
        self.num_bytes = sum(num_bytes for _, num_bytes, _ in files)
        room = max(size, self.max_bytes // 16)
        for _, num_bytes, path in files:
            if self.num_bytes + room <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            self.num_bytes -= num_bytes

    def _look(self) -> None:
        self._seen_ns = self.folder.stat().st_mtime_ns
        self.num_bytes = sum(num_bytes for _, num_bytes, _ in self._files())

    def _files(self) -> list[tuple[int, int, Path]]:
        """When changed, how large, and where; parts that are being written too, as the newest."""
        found, now_ns = [], time.time_ns()
        for path, is_part, status in self._entries():
            found.append((now_ns if is_part else status.st_mtime_ns, status.st_size, path))
        return found

    def _sweep(self) -> None:
        """Remove what killed writers left; not what may still be written."""
        for path, is_part, status in self._entries():
            if is_part and time.time() - status.st_mtime > _OLD_S:
                path.unlink(missing_ok=True)

    def _entries(self) -> list[tuple[Path, bool, os.stat_result]]:
        """Our files, and whether they are parts."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if match := self._pattern.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((self.folder / entry.name, match["part"] is not None, status))
        return found

    def _stop(self, error: OSError) -> None:
        self._is_writable = False
        logger.warning(
            "the prompt cache %s cannot be written (%s): prefixes are no longer kept there; what is there is used",
            self.folder,
            error.strerror or error,
        )
