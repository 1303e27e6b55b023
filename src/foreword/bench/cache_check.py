"""`foreword doctor --verify`: every file of the cache held against its checksums, whatever its times say.

What is damaged is removed: it is made or fetched again when it is next needed.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foreword.checkpoint.cache import forget, sha256_of
from foreword.checkpoint.default_model import DEFAULT_MODEL, default_model_path
from foreword.errors import CheckpointError
from foreword.files import sweep_folder
from foreword.progress import Report
from foreword.seal import SUFFIX, Compared, check_sealed, discard

_FOLDERS, _KINDS = ("native", "converted"), (".fwk", ".safetensors")
_WHAT = "comparing the cache with its checksums"


@dataclass(frozen=True)
class Damaged:
    """A file that is not as it was written."""

    file: str
    problem: str
    is_removed: bool


@dataclass(frozen=True)
class CacheCheck:
    """What was found."""

    num_files: int
    num_bytes: int
    damaged: list[Damaged]
    num_leftovers: int  # parts of killed writers, removed

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def check_cache(cache: Path, report: Report) -> CacheCheck:
    """Read all that is kept in the cache folder and remove what is damaged."""
    files = [path for folder in _FOLDERS for path in sorted((cache / folder).glob("*")) if path.suffix in _KINDS]
    model = default_model_path(cache)
    sizes = {path: path.stat().st_size for path in [*files, *([model] if model.is_file() else [])]}
    total, done, damaged = sum(sizes.values()), 0, []

    def compared(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report(_WHAT, done, total)

    for path in sizes:
        problem = _download_problem(path, cache, compared) if path == model else _problem(path, compared)
        if problem is not None:
            discard(path)
            damaged.append(Damaged(str(path), problem, not path.exists()))
    num_leftovers = sum(sweep_folder(cache / name) for name in (*_FOLDERS, "models", "sums", "costs"))
    return CacheCheck(len(sizes), total, damaged, num_leftovers + _lone_seals(cache))


def _problem(path: Path, compared: Compared) -> str | None:
    try:
        check_sealed(path, None, whole=True, compared=compared)
    except CheckpointError as error:
        return str(error)
    return None


def _download_problem(path: Path, cache: Path, compared: Compared) -> str | None:
    """Of the default model, whose checksum is known."""
    forget(path, cache)
    before = 0

    def more(done_bytes: int, _: int) -> None:
        nonlocal before
        compared(done_bytes - before)
        before = done_bytes

    found = sha256_of(path, cache, more)
    return None if found == DEFAULT_MODEL.sha256 else f"{path} has SHA-256 {found}, not {DEFAULT_MODEL.sha256}"


def _lone_seals(cache: Path) -> int:
    """Remove seals whose file is gone; how many."""
    lone = [
        seal
        for folder in _FOLDERS
        for seal in (cache / folder).glob(f"*{SUFFIX}")
        if not seal.with_name(seal.name.removesuffix(SUFFIX)).exists()
    ]
    for seal in lone:
        seal.unlink(missing_ok=True)
    return len(lone)
