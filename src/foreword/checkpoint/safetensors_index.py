"""The index of a checkpoint in shards: tensor name -> file beside it."""

import os
from collections.abc import Mapping
from pathlib import Path

from foreword.checkpoint.json_file import read_json
from foreword.checkpoint.safetensors_file import SafetensorsFile
from foreword.checkpoint.typed_keys import Options
from foreword.config import short_repr
from foreword.errors import CheckpointError

_MOST_NAME = 255  # bytes of a file's name, on every system


def index_of(index: Path) -> Mapping[str, str]:
    """Tensor name -> name of the file that holds it.

    Raises:
        CheckpointError: the index is damaged, or names files elsewhere.
    """
    table = Options(read_json(index), str(index), "").table("weight_map").values
    if not table:
        raise CheckpointError(f"{index} has no weight_map; fetch it again")
    for tensor, name in table.items():
        if not isinstance(name, str) or not _is_plain(name):
            raise CheckpointError(
                f"{index} says that tensor {short_repr(tensor)} is in {short_repr(name)}; allowed: the name of a file beside "
                f"the index; fetch it again"
            )
    return table


def _is_plain(name: str) -> bool:
    return bool(name) and Path(name).name == name and "\0" not in name and len(os.fsencode(name)) <= _MOST_NAME


def open_indexed(index: Path) -> list[SafetensorsFile]:
    """The files that an index names, in the order of their names.

    Raises:
        CheckpointError: one is missing, is damaged, or lacks a tensor that the index says is there.
    """
    weight_map, folder = index_of(index), index.parent
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files: {', '.join(missing[:3])}; fetch it again"
        )
    files = {name: SafetensorsFile(folder / name) for name in names}
    for tensor, name in weight_map.items():
        if tensor not in files[name].tensors:
            raise CheckpointError(
                f"{folder / name} lacks tensor {tensor}, which {index.name} says is there; fetch it again"
            )
    return list(files.values())
