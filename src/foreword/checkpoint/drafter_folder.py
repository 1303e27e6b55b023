"""Opening what a trained drafter comes in: a folder or hub id, its tensors in safetensors, shards, or an older pickle."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from foreword.checkpoint.cache import cache_folder, sha256_of
from foreword.checkpoint.paths import is_folder, is_there, local_path
from foreword.checkpoint.reading import reason_of
from foreword.checkpoint.safetensors_file import SafetensorsFile
from foreword.checkpoint.safetensors_index import index_of, open_indexed
from foreword.config import short_repr
from foreword.errors import CheckpointError, ModelNotFoundError

if TYPE_CHECKING:
    from torch import Tensor

_INDEX_SUFFIX = ".index.json"


def drafter_folder(path: str | Path, files: Sequence[str]) -> Path:
    """The local folder, with a config.json in it; a hub id is fetched, `files` among what is.

    Raises:
        ModelNotFoundError: there is no such folder, or it holds no drafter.
    """
    folder = local_path(path)
    if is_folder(folder):
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(
                f"{folder} holds no drafter: there is no config.json in it; was its training ended before one was kept?"
            )
        return folder
    from foreword.checkpoint.hub import fetch_from_hub, is_hub_name
    from foreword.progress import silent

    if is_there(folder) or not is_hub_name(str(path)):
        raise ModelNotFoundError(
            f"there is no drafter {short_repr(str(path), 200)}; allowed: a folder with config.json and {files[0]}, or a hub id"
        )
    return fetch_from_hub(str(path), silent, files)


def open_tensors(folder: Path, files: Sequence[str]) -> tuple[Path, Mapping[str, "Tensor"]]:
    """The first of `files` that is in the folder, and its tensors.

    Raises:
        CheckpointError: none is there, or it is damaged.
    """
    for name in files:
        path = folder / name
        if path.is_file():
            return path, tensors_of(path)
    raise CheckpointError(f"{folder} has no weights: neither {' nor '.join(files)} is there")


def tensors_of(path: Path) -> Mapping[str, "Tensor"]:
    """The tensors of one file, or of the shards that an index names."""
    if path.name.endswith(_INDEX_SUFFIX):
        return _Lazy(open_indexed(path))
    return _Lazy([SafetensorsFile(path)]) if path.suffix == ".safetensors" else _unpickled(path)


def files_behind(path: Path) -> list[Path]:
    """The files that `tensors_of` reads, in the order of their names."""
    if not path.name.endswith(_INDEX_SUFFIX):
        return [path]
    return [path.parent / name for name in sorted(set(index_of(path).values()))]


def fingerprint_of(path: Path) -> str:
    """SHA-256 of the file of weights; over those of the shards that an index names."""
    files, cache = files_behind(path), cache_folder()
    if len(files) == 1:
        return sha256_of(files[0], cache)
    sums = [f"{file.name} {sha256_of(file, cache)}" for file in files]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def _unpickled(path: Path) -> Mapping[str, "Tensor"]:
    """Tensors of a pickle; anything else in it is refused before it could run."""
    from zipfile import is_zipfile

    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception as error:  # a damaged pickle can raise anything: it is a program
        raise CheckpointError(
            f"{path} does not hold plain tensors ({reason_of(error)}); convert it to safetensors"
        ) from error
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in loaded.items()
    ):
        raise CheckpointError(f"{path} holds something else than a table of tensors; convert it to safetensors")
    return loaded


@final
class _Lazy(Mapping[str, "Tensor"]):
    """The tensors of files, each mapped when it is asked for."""

    def __init__(self, files: Sequence[SafetensorsFile]) -> None:
        self._where = {name: file for file in files for name in file.tensors}

    def __getitem__(self, name: str) -> "Tensor":
        return self._where[name].tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
