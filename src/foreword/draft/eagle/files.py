"""A folder that holds an EAGLE network: config.json and safetensors, or the older pytorch_model.bin.

Tensors get the names of `runtime/base.py`, so that a runtime builds the layer like any other decoder. What a file
leaves out, since it is the target's own (the embedding, EAGLE-1's head), is borrowed from the target.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from torch import Tensor

from foreword.checkpoint.cache import cache_folder, sha256_of
from foreword.checkpoint.json_file import read_json
from foreword.checkpoint.safetensors_file import SafetensorsFile
from foreword.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from foreword.runtime.base import WeightSource

_PARTS = {
    "input_layernorm": "attn_norm", "hidden_norm": "hidden_norm", "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
_NAMES = {"embed_tokens": "embed", "norm": "norm", "lm_head": "head", "fc": "fc"}
_LAYER = re.compile(r"(?:midlayer|layers\.(\d+))\.(.+)\.(weight|bias)")
_TABLES = ("d2t", "t2d")
_NOT_NEEDED = ("rotary_emb.inv_freq", ".freqs_cis")


@final
class EagleFiles:
    """The tensors of a folder by canonical name; `fc.weight`, `fc.bias`, `d2t` and `t2d` beside the decoder's.

    Args:
        path: the folder, or a hub id.

    Raises:
        ModelNotFoundError: there is no such folder.
        CheckpointError: files are missing or damaged.
        UnsupportedModelError: tensors that foreword would not use.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _folder(path)
        self.config: Mapping[str, Any] = read_json(self.path / "config.json")
        self._file, self._stored = _open(self.path)
        self._names: dict[str, str] = {}
        unknown = []
        for stored in self._stored:
            canonical = _canonical(stored)
            if canonical is not None:
                self._names[canonical] = stored
            elif not stored.endswith(_NOT_NEEDED):
                unknown.append(stored)
        if unknown:
            raise UnsupportedModelError(
                f"{self.path} has tensors that foreword's EAGLE layer does not use: {', '.join(sorted(unknown)[:3])}; "
                f"leaving them out would make its guesses worse"
            )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file of weights."""
        return sha256_of(self._file, cache_folder())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Any:
        return iter(self._names)

    def tensor(self, name: str) -> Tensor:
        """As stored. `CheckpointError` where there is none of this name."""
        if name not in self._names:
            raise CheckpointError(f"{self.path} has no tensor {name!r}, which this kind of EAGLE network needs")
        return self._stored[self._names[name]]


@final
class EagleWeights:
    """`WeightSource` of the layer: its own tensors, then those that are the target's.

    Args:
        files: the folder.
        target: the target's weights.
        borrowed: canonical name -> the target's name, for what the files leave out.
    """

    def __init__(self, files: EagleFiles, target: WeightSource, borrowed: Mapping[str, str]) -> None:
        self._files, self._target = files, target
        self._borrowed = {name: theirs for name, theirs in borrowed.items() if name not in files}

    @property
    def fingerprint(self) -> str:
        """Of both, where anything is borrowed."""
        sums = [self._files.fingerprint]
        if self._borrowed:
            sums += [self._target.fingerprint, *sorted(self._borrowed)]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def has_tensor(self, name: str) -> bool:
        """Whether it is there or can be borrowed."""
        return name in self._files or name in self._borrowed

    def tensor(self, name: str) -> Tensor:
        """Its own, or the target's."""
        return self._target.tensor(self._borrowed[name]) if name in self._borrowed else self._files.tensor(name)


def _folder(path: str | Path) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFoundError(
                f"{folder} holds no drafter: there is no config.json in it; was its training ended before one was kept?"
            )
        return folder
    from foreword.checkpoint.hub import fetch_from_hub, is_hub_name
    from foreword.checkpoint.progress import silent

    if folder.exists() or not is_hub_name(str(path)):
        raise ModelNotFoundError(
            f"there is no drafter {str(path)!r}; allowed: a folder with config.json and model.safetensors, or a hub id"
        )
    return fetch_from_hub(str(path), silent)


def _open(folder: Path) -> tuple[Path, Mapping[str, Tensor]]:
    path = folder / "model.safetensors"
    if path.is_file():
        return path, _Lazy(SafetensorsFile(path))
    path = folder / "pytorch_model.bin"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no weights: neither model.safetensors nor pytorch_model.bin is there")
    return path, _unpickled(path)


def _unpickled(path: Path) -> Mapping[str, Tensor]:
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
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{path} holds something else than a table of tensors; convert it to safetensors")
    return loaded


class _Lazy(Mapping[str, Tensor]):
    """The tensors of a file, each mapped when it is asked for."""

    def __init__(self, file: SafetensorsFile) -> None:
        self._file = file

    def __getitem__(self, name: str) -> Tensor:
        return self._file.tensor(name)

    def __iter__(self) -> Any:
        return iter(self._file.tensors)

    def __len__(self) -> int:
        return len(self._file.tensors)


def _canonical(stored: str) -> str | None:
    """Foreword's name of a tensor; None for one that it does not know."""
    name = stored.removeprefix("model.")
    if name in _TABLES:
        return name
    if match := _LAYER.fullmatch(name):
        index, part, kind = match.groups()
        return f"layers.{index or 0}.{_PARTS[part]}.{kind}" if part in _PARTS else None
    bare, _, kind = name.rpartition(".")
    return f"{_NAMES[bare]}.{kind}" if bare in _NAMES and kind in ("weight", "bias") else None


def check_shapes(files: EagleFiles, weights: EagleWeights, shapes: Mapping[str, Sequence[int]]) -> None:
    """`CheckpointError` for a tensor that is missing or has another shape."""
    for name, shape in shapes.items():
        if not weights.has_tensor(name):
            raise CheckpointError(f"{files.path} has no tensor {name!r}, which this kind of EAGLE network needs")
        found = tuple(weights.tensor(name).shape)
        if found != tuple(shape):
            raise CheckpointError(
                f"{files.path}: tensor {name!r} has shape {list(found)}; this target and config.json ask for "
                f"{list(shape)}; was it made for another model?"
            )
