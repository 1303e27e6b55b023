"""Opening what a trained drafter comes in: a folder or hub id, its tensors in safetensors, shards, or an older pickle."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from foreword.checkpoint.json_file import read_json
from foreword.checkpoint.safetensors_file import SafetensorsFile
from foreword.errors import CheckpointError, ModelNotFoundError

if TYPE_CHECKING:
    from torch import Tensor

_INDEX_SUFFIX = ".index.json"


def drafter_folder(path: str | Path, files: Sequence[str]) -> Path:
    """The local folder, with a config.json in it; a hub id is fetched, `files` among what is.

    Raises:
        ModelNotFoundError: there is no such folder, or it holds no drafter.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(
                f"{folder} holds no drafter: there is no config.json in it; was its training ended before one was kept?"
            )
        return folder
    from foreword.checkpoint.hub import fetch_from_hub, is_hub_name
    from foreword.progress import silent

    if folder.exists() or not is_hub_name(str(path)):
        raise ModelNotFoundError(
            f"there is no drafter {str(path)!r}; allowed: a folder with config.json and {files[0]}, or a hub id"
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
        shards = sorted({str(name) for name in read_json(path).get("weight_map", {}).values()})
        if not shards or any(Path(shard).name != shard for shard in shards):
            raise CheckpointError(f"{path} names no shards beside it; fetch it again")
        if missing := [shard for shard in shards if not (path.parent / shard).is_file()]:
            raise CheckpointError(f"{path} names {missing[0]}, which is not there; fetch it again")
        return _Lazy([SafetensorsFile(path.parent / shard) for shard in shards])
    return _Lazy([SafetensorsFile(path)]) if path.suffix == ".safetensors" else _unpickled(path)


def _unpickled(path: Path) -> Mapping[str, "Tensor"]:
    """Tensors of a pickle; anything else in it is refused before it could run."""
    import pickle
    from zipfile import is_zipfile

    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        first_line = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path} does not hold plain tensors ({first_line}); convert it to safetensors"
        ) from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
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
