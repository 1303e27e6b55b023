"""Seals: what a file of the cache holds, written beside it when it is made and compared when it is used.

    <file>.seal    {"version", "source", "size", "pieces": [[begin, end, CRC-32], ...], "state": [...]}

`source` is the fingerprint of what the file was made from. The first piece is the file's header. At a load the source,
the size and the header are compared; the other pieces only where the operating system says that the file was touched
since it was last found whole (`state`: size, times, inode). So a start reads nothing twice, and a changed file is seen.
`foreword doctor --verify` compares all pieces: damage of the disk itself leaves times as they are.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from foreword.errors import CheckpointError
from foreword.files import whole_file, write_whole

SUFFIX = ".seal"
_VERSION = 1
_MOST_BYTES = 1 << 26  # a piece
_CHUNK_BYTES = 1 << 22
_LONGEST_SEAL = 1 << 24

Compared = Callable[[int], object]  # told how many more bytes were compared


@dataclass(frozen=True)
class Seal:
    """What a file holds."""

    source: str
    size: int
    pieces: list[list[int]]  # begin, end, CRC-32 of the bytes between
    state: list[int] | None = None  # of the file when it was last found whole
    version: int = _VERSION

    def write(self, path: Path) -> None:
        """Put it beside `path`."""
        write_whole(seal_path(path), json.dumps(asdict(self)))


class SealedFile:
    """A binary file that is written, and the checksums of what was written. Bytes that are sought past are not summed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._pieces: list[list[int]] = []
        self._begins_piece = True

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._file.tell()

    def seek(self, at: int) -> int:
        """Go on writing at `at`."""
        self._begins_piece = True
        return self._file.seek(at)

    def write(self, data: Any) -> int:
        """Write bytes, or what holds them."""
        begin = self._file.tell()
        written = self._file.write(data)
        last = self._pieces[-1] if self._pieces else [0, 0, 0]
        if self._begins_piece or last[1] - last[0] >= _MOST_BYTES:
            last = [begin, begin, 0]
            self._pieces.append(last)
        last[1], last[2] = begin + written, zlib.crc32(data, last[2])
        self._begins_piece = False
        return written

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        self._file.flush()

    def end_piece(self) -> None:
        """What comes next has a checksum of its own: the header is compared at every load, the rest is not."""
        self._begins_piece = True

    @property
    def pieces(self) -> list[list[int]]:
        """As in a seal, the first bytes first."""
        return sorted(self._pieces)


def seal_path(path: Path) -> Path:
    """Where the seal of a file is."""
    return path.with_name(path.name + SUFFIX)


@contextlib.contextmanager
def sealed_file(path: Path, source: str) -> Iterator[SealedFile]:
    """A file to write that appears as `path`, with its seal, only when the block ends without an error.

    Call it while holding `locked(path)`.
    """
    with whole_file(path) as file:
        sealed = SealedFile(file)
        yield sealed
        file.flush()
        seal = Seal(source, os.fstat(file.fileno()).st_size, sealed.pieces)
        seal.write(path)  # before the file: whoever finds a file without its seal takes it for damaged
    replace(seal, state=_state(path)).write(path)


def check_sealed(path: Path, source: str | None, *, whole: bool = False, compared: Compared | None = None) -> None:
    """Compare a file with its seal; all of it where `whole`, or where the file was touched since.

    Args:
        path: the file.
        source: the fingerprint that it must have been made from; None for whatever there is.
        whole: whether to read all of it in any case.
        compared: told how many more bytes were read.

    Raises:
        CheckpointError: it is not the file that was written, or cannot be read.
    """
    try:
        seal, state = _read(path), _state(path)
        if source is not None and seal.source != source:
            raise CheckpointError(f"{path} was made from another model, or another version of it")
        if state[0] != seal.size:
            raise CheckpointError(f"{path} is cut short or has grown: it has {state[0]} bytes and had {seal.size}")
        _compare(path, seal.pieces if whole or state != seal.state else seal.pieces[:1], compared)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if state != seal.state:
        with contextlib.suppress(OSError):
            replace(seal, state=state).write(path)


def is_sealed(path: Path, source: str) -> bool:
    """Whether a file is there and as its seal says."""
    try:
        check_sealed(path, source)
    except CheckpointError:
        return False
    return True


def move_sealed(path: Path, to: Path) -> None:
    """Give a file and its seal another name, in place of what has it; nothing where there is no file."""
    if path.is_file():
        discard(to)
        for part in (seal_path, lambda path: path):  # the seal first: a file without one is not trusted
            if part(path).exists():
                part(path).replace(part(to))


def discard(path: Path) -> None:
    """Remove a file and its seal, as far as that can be done."""
    for part in (path, seal_path(path)):
        with contextlib.suppress(OSError):
            part.unlink()


def _read(path: Path) -> Seal:
    try:
        with seal_path(path).open("rb") as file:
            seal = Seal(**json.loads(file.read(_LONGEST_SEAL)))
        is_sound = seal.version == _VERSION and bool(seal.pieces) and type(seal.size) is int
        ends = [end for begin, end, checksum in seal.pieces if 0 <= begin < end and checksum >= 0]
        is_sound = is_sound and len(ends) == len(seal.pieces) and max(ends, default=0) <= seal.size
    except FileNotFoundError:
        raise CheckpointError(f"{path} has no seal beside it") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the seal of {path} is damaged ({error})") from error
    if not is_sound:
        raise CheckpointError(f"the seal of {path} is damaged, or of another version")
    return seal


def _state(path: Path) -> list[int]:
    """What changes when a file is written to."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _compare(path: Path, pieces: list[list[int]], compared: Compared | None) -> None:
    with path.open("rb") as file:
        for begin, end, checksum in pieces:
            if _checksum(file, begin, end, compared) != checksum:
                raise CheckpointError(f"{path} is damaged: its bytes {begin} to {end} are not those that were written")


def _checksum(file: IO[bytes], begin: int, end: int, compared: Compared | None) -> int:
    checksum, left = 0, end - begin
    file.seek(begin)
    while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
        checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
        if compared is not None:
            compared(len(chunk))
    return checksum if left == 0 else -1
