"""The files of Medusa heads, in the layouts that are about.

    legacy        medusa_lm_head.pt or .safetensors    {i}.{j}.linear.weight/bias, then {i}.{layers}.weight: the output
    version 2     the same                             without outputs: heads use the target's own
    full model    a Hugging Face folder                medusa_head.{i}. ... beside the tensors of the model it was tuned with
    vllm          model.safetensors                    blocks.{i}.layers.{j}.weight(/bias), lm_heads.{i}.weight, token_map

How many heads and layers there are, and whether layers have biases, is read off the tensors: in published configs it is
often wrong.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foreword.checkpoint.drafter_folder import drafter_folder, open_tensors, tensors_of
from foreword.checkpoint.drafter_kind import card_of, what_it_is
from foreword.checkpoint.json_file import read_json, read_json_if_any
from foreword.checkpoint.paths import is_folder, is_there, local_path
from foreword.checkpoint.reading import reading
from foreword.errors import CheckpointError, UnsupportedModelError

FILES = (
    "medusa_lm_head.safetensors", "medusa_lm_head.pt", "model.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin",
)  # fmt: skip
_LAYER = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_OUTPUT = re.compile(r"(\d+)\.(\d+)\.weight")
_VLLM_LAYER = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_VLLM_OUTPUT = re.compile(r"lm_heads\.(\d+)\.weight")


@dataclass(frozen=True)
class Layer:
    """One residual layer."""

    weight: Tensor  # (H, H)
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class MedusaFiles:
    """The heads as they are stored."""

    path: Path
    layout: str  # "legacy", "version 2", "full model" or "vllm"
    config: Mapping[str, Any]
    blocks: tuple[tuple[Layer, ...], ...]  # by head
    outputs: tuple[Tensor, ...]  # one per head; one for all; none: the target's
    token_map: Tensor | None  # the target's id of each row of the outputs
    num_bytes: int  # of the heads' tensors
    notes: tuple[str, ...] = field(default=())  # what the config says otherwise than the tensors

    @property
    def card(self) -> Mapping[str, Any]:
        """config.json's "foreword" object."""
        return card_of(self.config)


def open_heads(path: str | Path) -> MedusaFiles:
    """Read a folder, a hub id, or one file of weights.

    Raises:
        ModelNotFoundError: there is no such thing.
        CheckpointError: files or tensors are missing or damaged.
        UnsupportedModelError: other heads than Medusa's.
    """
    with reading(path):
        return _open_heads(path)


def _open_heads(path: str | Path) -> MedusaFiles:
    file = local_path(path)
    if is_there(file) and not is_folder(file):
        config, stored = read_json_if_any(file.parent / "config.json"), tensors_of(file)
    else:
        folder = drafter_folder(path, FILES)
        config = read_json(folder / "config.json")
        file, stored = open_tensors(folder, FILES)
    names, layout = _head_names(file, stored, config)
    blocks: dict[int, dict[int, dict[str, Tensor]]] = {}
    outputs: dict[int, Tensor] = {}
    for name, full_name in names.items():
        if match := _LAYER.fullmatch(name) or _VLLM_LAYER.fullmatch(name):
            head, layer, kind = int(match[1]), int(match[2]), match[3]
            blocks.setdefault(head, {}).setdefault(layer, {})[kind] = stored[full_name]
        elif match := _VLLM_OUTPUT.fullmatch(name) or _OUTPUT.fullmatch(name):
            outputs[int(match[1])] = stored[full_name]
    made = tuple(_block(file, head, layers) for head, layers in sorted(blocks.items()))
    if sorted(blocks) != list(range(len(blocks))) or not blocks:
        raise CheckpointError(f"{file} has heads {sorted(blocks)}; allowed: 0, 1, 2 and so on, at least one")
    if sorted(outputs) not in ([], [0], sorted(blocks)):
        raise CheckpointError(
            f"{file} has output matrices for heads {sorted(outputs)} of {len(blocks)}; allowed: all, one or none"
        )
    if layout == "legacy" and not outputs:
        layout = "version 2"
    token_map = stored[names["token_map"]] if "token_map" in names else None
    num_bytes = sum(stored[full].numel() * stored[full].element_size() for full in names.values())
    matrices = tuple(outputs[head] for head in sorted(outputs))
    return MedusaFiles(file, layout, config, made, matrices, token_map, num_bytes, _notes(config, made))


def _head_names(file: Path, stored: Mapping[str, Tensor], config: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The heads' tensors (plain name -> as stored) and the layout; refuses what would be left out."""
    if hydra := [name for name in stored if name.startswith(("hydra_", "prefix_embeding_layer"))]:
        raise UnsupportedModelError(
            f"{file} holds Hydra heads ({hydra[0]}), which read the tokens drafted before them; foreword drafts with Medusa's"
        )
    full = [name for name in stored if name.startswith("medusa_head.")]
    if full:
        names, layout = {name.removeprefix("medusa_head."): name for name in full}, "full model"
        layout = layout if len(full) < len(stored) else "legacy"
    else:
        names = {name.removeprefix("medusa_heads."): name for name in stored}
        layout = "vllm" if any(_VLLM_LAYER.fullmatch(name) for name in names) else "legacy"
        if layout == "vllm" and "lm_head.weight" in names:  # one output for all heads
            names["lm_heads.0.weight"] = names.pop("lm_head.weight")
    patterns = (_VLLM_LAYER, _VLLM_OUTPUT) if layout == "vllm" else (_LAYER, _OUTPUT)
    others = [n for n in names if n != "token_map" and not any(pattern.fullmatch(n) for pattern in patterns)]
    if others:
        raise UnsupportedModelError(
            f"{file} has tensors that Medusa heads do not have ({', '.join(sorted(others)[:3])}): "
            f"{what_it_is(config, stored, file.parent)}"
        )
    return names, layout


def _block(file: Path, head: int, layers: Mapping[int, Mapping[str, Tensor]]) -> tuple[Layer, ...]:
    if sorted(layers) != list(range(len(layers))) or any("weight" not in layer for layer in layers.values()):
        raise CheckpointError(
            f"{file}: head {head} has layers {sorted(layers)}; allowed: 0, 1 and so on, each a weight"
        )
    return tuple(Layer(layer["weight"], layer.get("bias")) for _, layer in sorted(layers.items()))


def _notes(config: Mapping[str, Any], blocks: tuple[tuple[Layer, ...], ...]) -> tuple[str, ...]:
    notes = []
    for keys, found, word in (
        (("num_heads", "medusa_num_heads"), len(blocks), "heads"),
        (("num_hidden_layers", "medusa_num_layers"), len(blocks[0]), "layers per head"),
    ):
        key = keys[0] if config.get("model_type") == "medusa" else keys[1]
        said = config.get(key)
        if said is not None and said != found:
            notes.append(f"config.json says {said} {word}; the file holds {found}, and they are used")
    return tuple(notes)


def finite(file: Path, name: str, tensor: Tensor) -> Tensor:
    """The tensor in float32; `CheckpointError` where it holds NaN or infinity."""
    values = tensor.float()
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(f"{file}: {name} holds NaN or infinity; the file is damaged, or training went astray")
    return values
