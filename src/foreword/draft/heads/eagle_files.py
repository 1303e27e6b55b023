"""A folder that holds an EAGLE network: config.json and safetensors, or the older pytorch_model.bin.

Tensors get the names of `runtime/base.py`, so that a runtime builds the layer like any other decoder. What a file
leaves out, since it is the target's own (the embedding, EAGLE-1's head), is borrowed from the target.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from foreword.checkpoint.drafter_folder import drafter_folder, fingerprint_of, open_tensors
from foreword.checkpoint.drafter_kind import stands_alone, what_it_is
from foreword.checkpoint.json_file import read_json
from foreword.checkpoint.reading import reading
from foreword.errors import CheckpointError, UnsupportedModelError
from foreword.runtime.base import WeightSource

_PARTS = {
    "input_layernorm": "attn_norm", "hidden_norm": "hidden_norm", "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
_NAMES = {"embed_tokens": "embed", "norm": "norm", "lm_head": "head", "fc": "fc", "input_norm": "input_norm"}
_STREAM_NORM = re.compile(r"fc_norm\.\d+\.weight")
_LAYER = re.compile(r"(?:midlayer|layers\.(\d+))\.(.+)\.(weight|bias)")
_TABLES = ("d2t", "t2d")
_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_NOT_NEEDED = ("rotary_emb.inv_freq", ".freqs_cis")


@final
class EagleFiles:
    """The tensors of a folder by canonical name.

    Beside the decoder's: `fc.weight`, `fc.bias`, `d2t`, `t2d`, `input_norm.weight`, `fc_norm.{i}.weight`.

    Args:
        path: the folder, or a hub id.

    Raises:
        ModelNotFoundError: there is no such folder.
        CheckpointError: files are missing or damaged.
        UnsupportedModelError: tensors that foreword would not use.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = drafter_folder(path, _FILES)
        with reading(self.path):
            self._open()

    def _open(self) -> None:
        self.config: Mapping[str, Any] = read_json(self.path / "config.json")
        self._file, self._stored = open_tensors(self.path, _FILES)
        if stands_alone(self._stored) or not {"fc.weight", "model.fc.weight"} & set(self._stored):
            raise UnsupportedModelError(
                f"{self.path} holds no EAGLE network (it has no fc.weight): "
                f"{what_it_is(self.config, self._stored, self.path)}"
            )
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
                f"leaving them out would lower its acceptance"
            )
        self._settle_norms()

    def _settle_norms(self) -> None:
        """The norm before attention of a layer after the first one, which some call hidden_norm: one tensor, or a copy."""
        for name in [name for name in self._names if name.endswith(".hidden_norm.weight")]:
            usual = name.replace("hidden_norm", "attn_norm")
            if name.startswith("layers.0."):
                continue
            if usual not in self._names:
                self._names[usual] = self._names.pop(name)
            elif torch.equal(self.tensor(name), self.tensor(usual)):
                del self._names[name]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights."""
        return self._sum

    @cached_property
    def _sum(self) -> str:
        return fingerprint_of(self._file)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def has_tensor(self, name: str) -> bool:
        """Whether the files hold it."""
        return name in self._names

    def __iter__(self) -> Any:
        return iter(self._names)

    def tensor(self, name: str) -> Tensor:
        """As stored. `CheckpointError` where there is none of this name."""
        if name not in self._names:
            raise CheckpointError(f"{self.path} has no tensor {name!r}, which this kind of EAGLE network needs")
        return self._stored[self._names[name]]


def _canonical(stored: str) -> str | None:
    """Foreword's name of a tensor; None for one that it does not know."""
    name = stored.removeprefix("model.")
    if name in _TABLES or _STREAM_NORM.fullmatch(name):
        return name
    if match := _LAYER.fullmatch(name):
        index, part, kind = match.groups()
        return f"layers.{index or 0}.{_PARTS[part]}.{kind}" if part in _PARTS else None
    bare, _, kind = name.rpartition(".")
    return f"{_NAMES[bare]}.{kind}" if bare in _NAMES and kind in ("weight", "bias") else None


def check_shapes(files: EagleFiles, weights: WeightSource, shapes: Mapping[str, Sequence[int]]) -> None:
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
