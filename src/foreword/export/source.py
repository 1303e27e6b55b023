"""A trained drafter and its target, opened for export."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.drafter_folder import drafter_folder, open_tensors
from foreword.checkpoint.drafter_kind import card_of, drafter_kind_of
from foreword.checkpoint.json_file import read_json
from foreword.checkpoint.opened import Checkpoint
from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.errors import ConfigError, ModelNotFoundError
from foreword.target.model_source import ModelSource

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
KINDS = ("eagle", "eagle3", "medusa", "draft_model")  # what can be exported


@dataclass(frozen=True, eq=False)
class DrafterSource:
    """What is exported."""

    path: Path
    kind: str  # one of KINDS
    config: Mapping[str, Any]
    tensors: Mapping[str, "Tensor"]  # as stored
    target: Checkpoint

    @property
    def card(self) -> Mapping[str, Any]:
        """What training wrote about it."""
        return card_of(self.config)

    @property
    def vocab_size(self) -> int:
        """Of the target."""
        return self.target.spec.vocab_size

    @property
    def is_reduced(self) -> bool:
        """Whether it proposes only some of the target's tokens."""
        return self.draft_ids is not None

    @property
    def draft_ids(self) -> "Tensor | None":
        """(rows,) the target's id of each row of the drafter's head; None where they are the same."""
        import torch

        if "token_map" in self.tensors:
            return self.tensors["token_map"].long()
        if "d2t" not in self.tensors:
            return None
        offsets = self.tensors["d2t"].long()
        return offsets + torch.arange(len(offsets))

    def sizes(self) -> dict[str, Any]:
        """The keys of a Llama configuration that say how its layers are shaped, as it came."""
        keys = (
            "hidden_act", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
        )  # fmt: skip
        return {key: self.config[key] for key in keys if key in self.config}


def open_drafter(drafter: str, target: ModelSource) -> DrafterSource:
    """A folder, a hub id, or the kind of a drafter that lies with this model (`eagle3`).

    Raises:
        ConfigError: it is of a kind that no other engine knows.
        ModelNotFoundError: there is none.
    """
    if not isinstance(target, Checkpoint):
        raise ConfigError(f"{target.source} was taken from transformers; load the model from its folder or file")
    path: str | Path = drafter
    if drafter in KINDS:
        found = trained_drafter(drafter, target.fingerprint)
        if found is None:
            raise ModelNotFoundError(f"no trained {drafter} lies with {target.source}; name its folder")
        path = found
    folder = drafter_folder(path, FILES)
    config = read_json(folder / "config.json")
    _, tensors = open_tensors(folder, FILES)
    kind = drafter_kind_of(config, tensors)
    kind = "eagle" if kind in ("eagle", "eagle2") else kind
    if kind not in KINDS:
        what = f"a drafter of kind {kind}" if kind else "no drafter that foreword knows"
        raise ConfigError(f"{folder} holds {what}; what other engines load is: {', '.join(KINDS)}")
    made_for = card_of(config).get("target_fingerprint")
    if made_for and made_for != target.fingerprint:
        name = card_of(config).get("target", "another model")
        raise ConfigError(f"{folder} was trained for {name}, not for {target.source}; name its model with --model")
    return DrafterSource(folder, kind, config, tensors, target)
