"""A memory on disk: one file, whole or not at all, checked when it is read, shared by any number of processes.

    safetensors     places (n) u32, rows (n, 4) u32: the rows that are taken      mixer (numbers) f64
                    metadata: version, model, num_rows, stamp of the write, CRC-32 of all of it

A save holds the file's lock, and where another process has written since, the stronger row of each place is kept. A file
that is damaged is told, put aside and not used. `forget` leaves a note beside the file, by which processes that still run see
that they have to forget too.
"""

import logging
import secrets
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt32
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from foreword.cache_folder import cache_folder
from foreword.draft.memory.store import merged
from foreword.errors import CheckpointError, ConfigError
from foreword.files import locked, put_aside, sweep_parts, whole_file, write_whole

logger = logging.getLogger(__name__)

SUFFIX = ".memory"
_VERSION = "1"
_NOTE, _DAMAGED, _LOCK = ".forgotten", ".damaged", ".lock"
_KINDS = {"places": "uint32 x 1", "rows": "uint32 x 2", "mixer": "float64 x 1"}

Rows = UInt32[np.ndarray, "rows 4"]


class Forgotten(Exception):
    """The memory was erased since it was read: what was learned until now is to be dropped."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What a file holds."""

    rows: Rows  # of the store, all of them
    mixer: Float[np.ndarray, " numbers"]
    stamp: str  # of the write


class MemoryFile:
    """The place of one memory.

    Args:
        path: of the file.
        model: what names the model whose answers these are.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path, self.model = path, model
        self._stamp = ""  # of the write that this process has read, or made
        self._note = ""  # of the last `forget`

    def load(self) -> Kept | None:
        """What the file holds; None where there is none yet, or it is damaged, which is logged.

        Raises:
            ConfigError: it is another model's or another version's, or its place cannot be used.
        """
        try:
            with locked(self.path):
                self._note = _read_note(self.path)
                kept = self._read()
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"the memory {self.path} cannot be used: {reason}; name another file") from error
        self._stamp = "" if kept is None else kept.stamp
        return kept

    def save(self, rows: Rows, mixer: Float[np.ndarray, " numbers"]) -> Rows | None:
        """Write what was learned; where another process has written meanwhile, with what that one knew, which is returned.

        Raises:
            Forgotten: the memory was erased; nothing is written.
            OSError: it cannot be written. What was there before stays.
        """
        with locked(self.path):
            sweep_parts(self.path)
            if (note := _read_note(self.path)) != self._note:
                self._note, self._stamp = note, ""
                raise Forgotten
            theirs = self._read()
            is_news = theirs is not None and theirs.stamp != self._stamp and theirs.rows.shape == rows.shape
            if theirs is not None and is_news:
                rows = merged(rows, theirs.rows)
            self._stamp = _write(self.path, self.model, rows, mixer)
            return rows if is_news else None

    def _read(self) -> Kept | None:
        if not self.path.exists() or self.path.stat().st_size == 0:
            return None
        try:
            return _parsed(self.path, self.model)
        except CheckpointError as error:
            put_aside(self.path)
            logger.warning("%s; it is put aside as %s%s, and learning begins anew", error, self.path.name, _DAMAGED)
            return None


def memory_folder() -> Path:
    """Where memories are kept if no file is named."""
    return cache_folder() / "memory"


def forget(path: Path) -> int:
    """Erase a memory, with what damaged or cut writes of it have left; bytes that were freed.

    Processes that still use it drop what they have learned when they save next. `OSError` where it cannot be erased.
    """
    with locked(path):
        remains = [path, path.with_name(path.name + _DAMAGED)]
        freed = sum(part.stat().st_size for part in remains if part.is_file())
        write_whole(
            path.with_name(path.name + _NOTE), secrets.token_hex(8)
        )  # first: a kill in between leaves nothing to save
        sweep_parts(path)
        for part in remains:
            part.unlink(missing_ok=True)
    return freed


def memories(folder: Path) -> list[Path]:
    """The memories of a folder, also those of which only a lock or what was damaged is there yet."""
    found = set()
    for end in ("", _DAMAGED, _LOCK):
        found |= {file.with_name(file.name.removesuffix(end)) for file in folder.glob(f"*{SUFFIX}{end}")}
    return sorted(found)


def _read_note(path: Path) -> str:
    try:
        return path.with_name(path.name + _NOTE).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""


def _write(path: Path, model: str, rows: Rows, mixer: Float[np.ndarray, " numbers"]) -> str:
    places = np.flatnonzero(rows[:, 0]).astype(np.uint32)
    tensors = {"places": places, "rows": np.ascontiguousarray(rows[places]), "mixer": mixer}
    facts = {"version": _VERSION, "model": model, "num_rows": str(len(rows)), "stamp": secrets.token_hex(8)}
    if not path.exists():
        path.touch(mode=0o600)  # what a user was told is nobody else's; a file that is replaced keeps its mode
    with whole_file(path) as file:
        file.write(save(tensors, metadata=facts | {"crc32": _checksum(facts, tensors)}))
    return facts["stamp"]


def _checksum(facts: dict[str, str], tensors: dict[str, np.ndarray]) -> str:
    checksum = zlib.crc32("\n".join(facts[name] for name in ("version", "model", "num_rows", "stamp")).encode())
    for name in _KINDS:
        checksum = zlib.crc32(tensors[name].tobytes(), checksum)
    return f"{checksum:08x}"


def _parsed(path: Path, model: str) -> Kept:
    """A file's content. `CheckpointError` where it is damaged, `ConfigError` where it is whole and not for this."""
    try:
        with safe_open(path, "numpy") as file:
            facts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in _KINDS}
        kinds = {name: f"{values.dtype} x {values.ndim}" for name, values in tensors.items()}
        is_sound = kinds == _KINDS and _checksum(facts, tensors) == facts["crc32"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"the memory {path} is damaged ({error})") from error
    if not is_sound:
        raise CheckpointError(f"the memory {path} is damaged: its checksum is not that of what it holds")
    if facts["version"] != _VERSION:
        raise ConfigError(
            f"the memory {path} is of version {facts['version']}, and this foreword reads {_VERSION}; name another file, or "
            f"erase it with 'foreword forget'"
        )
    if facts["model"] != model:
        raise ConfigError(
            f"the memory {path} is another model's; name another file, or erase it with 'foreword forget'"
        )
    places, num_rows = tensors["places"], int(facts["num_rows"])
    if num_rows & (num_rows - 1) or places.max(initial=0) >= num_rows or len(places) != len(tensors["rows"]):
        raise CheckpointError(f"the memory {path} is damaged: {len(places)} rows of a table of {num_rows}")
    rows = np.zeros((num_rows, 4), dtype=np.uint32)
    rows[places] = tensors["rows"]
    return Kept(rows, tensors["mixer"], facts["stamp"])
