"""A draft model that was trained for one target (`foreword train draft_model`), in a folder of its own.

    config.json          as of any Llama-like model, and "foreword": {"method": "draft_model", ...}
    model.safetensors    layers and final norm, d2t (target's id minus row, for each row of the head) [eagle3]; the
                         embedding and the head's rows are the target's, unless they are there

It has no tokenizer: its ids are the target's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from foreword.checkpoint.drafter_folder import fingerprint_of, tensors_of
from foreword.checkpoint.drafter_kind import card_of
from foreword.checkpoint.hf_config import spec_from_config
from foreword.checkpoint.json_file import read_json, read_json_if_any
from foreword.checkpoint.name_map import HF_NAMES, expected_shapes, file_name
from foreword.checkpoint.paths import is_folder, local_path
from foreword.checkpoint.reading import reading
from foreword.checkpoint.shared_weights import BorrowedWeights
from foreword.config import ModelSpec
from foreword.errors import CheckpointError
from foreword.runtime.base import Decoder, Runtime, WeightSource
from foreword.sampling.draft_sampling import DraftVocab

METHOD = "draft_model"
WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model in memory, and what its folder says about using it."""

    decoder: Decoder
    vocab: DraftVocab
    settings: Mapping[str, Any]  # config.json's "foreword" object


def is_trained_model(path: str | Path) -> bool:
    """Whether a local folder holds such a model, rather than one that stands alone."""
    folder = local_path(path)
    return is_folder(folder) and card_of(read_json_if_any(folder / "config.json")).get("method") == METHOD


@final
class TrainedModelFiles:
    """`WeightSource` of what the folder holds.

    Raises:
        CheckpointError: files are missing or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = local_path(path)
        self.config: Mapping[str, Any] = read_json(self.path / "config.json")
        self._file = self.path / WEIGHTS_FILE
        if not self._file.is_file():
            raise CheckpointError(f"{self.path} has no weights: {WEIGHTS_FILE} is not there; copy the whole folder")
        self._stored = tensors_of(self._file)

    @property
    def card(self) -> Mapping[str, Any]:
        """config.json's "foreword" object."""
        return card_of(self.config)

    @property
    def num_bytes(self) -> int:
        """Size of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._stored.values())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file of weights."""
        return self._sum

    @cached_property
    def _sum(self) -> str:
        return fingerprint_of(self._file)

    @cached_property
    def spec(self) -> ModelSpec:
        """What it is: the head as long as its own rows or as d2t."""
        spec = spec_from_config(self.config, str(self.path))
        rows = next((self._stored[name] for name in (HF_NAMES["head.weight"], "d2t") if name in self._stored), None)
        return replace(spec, tied_head=False, head_size=None if rows is None else len(rows))

    @cached_property
    def ids(self) -> Tensor | None:
        """The target's id of each row of the head; None where they are the target's own."""
        if "d2t" not in self._stored:
            return None
        ids = self._stored["d2t"].long() + torch.arange(len(self._stored["d2t"]))
        if len(ids) != self.spec.num_logits or int(ids.min()) < 0 or int(ids.max()) >= self.spec.vocab_size:
            raise CheckpointError(
                f"{self.path}: d2t names {len(ids)} tokens from {int(ids.min())} to {int(ids.max())}; allowed: one for each "
                f"of the head's {self.spec.num_logits} rows, from 0 to {self.spec.vocab_size - 1}"
            )
        return ids

    def has_tensor(self, name: str) -> bool:
        """Whether the folder holds the tensor of this canonical name."""
        return self._names.get(name) in self._stored

    def tensor(self, name: str) -> Tensor:
        """As stored."""
        return self._stored[self._names[name]]

    @cached_property
    def _names(self) -> dict[str, str]:
        """Canonical name -> name in the file, of every tensor that it may hold."""
        return {name: file_name(HF_NAMES, name) for name in (*expected_shapes(self.spec), "head.weight")}


def load_trained_model(
    files: TrainedModelFiles, target: ModelSpec, theirs: WeightSource, runtime: Runtime
) -> TrainedModel:
    """Build it beside its target.

    Args:
        files: the opened folder.
        target: what the target is.
        theirs: the target's weights, for what the folder leaves out.
        runtime: what the target runs on.

    Raises:
        CheckpointError: it was made for a target of other sizes, or a tensor is missing.
    """
    with reading(files.path):
        return _build(files, target, theirs, runtime)


def _build(files: TrainedModelFiles, target: ModelSpec, theirs: WeightSource, runtime: Runtime) -> TrainedModel:
    spec = files.spec
    sizes = {"vocabulary": (spec.vocab_size, target.vocab_size), "hidden size": (spec.hidden_size, target.hidden_size)}
    for name, (own, wanted) in sizes.items():
        if own != wanted:
            raise CheckpointError(
                f"{files.path} has a {name} of {own}, this target one of {wanted}; was it made for another model?"
            )
    head = "embed.weight" if target.tied_head else "head.weight"
    weights = BorrowedWeights(files, theirs, {"embed.weight": "embed.weight", "head.weight": head}, files.ids)
    for name, shape in {**expected_shapes(spec), "head.weight": (spec.num_logits, spec.hidden_size)}.items():
        if not weights.has_tensor(name):
            raise CheckpointError(f"{files.path} has no tensor {file_name(HF_NAMES, name)}; copy the whole folder")
        if files.has_tensor(name) and tuple(files.tensor(name).shape) != shape:
            raise CheckpointError(
                f"{files.path}: tensor {file_name(HF_NAMES, name)} has shape {list(files.tensor(name).shape)}; "
                f"config.json asks for {list(shape)}"
            )
    vocab = DraftVocab(target.vocab_size, spec.num_logits, files.ids)
    return TrainedModel(runtime.decoder(spec, weights), vocab, files.card)
