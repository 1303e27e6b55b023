"""The draft model as it is trained: some of the target's layers and its final norm, between its frozen tables.

Parameter names, with "model." before them, are those of Hugging Face's files.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from foreword.checkpoint.name_map import HF_NAMES, file_name
from foreword.config import ModelSpec
from foreword.runtime.base import WeightSource
from foreword.train.eagle3_net import RMSNorm
from foreword.train.layer_net import Layer

PREFIX = "model."


def chosen_layers(num_layers: int, target_layers: int) -> list[int]:
    """The target's layers to start from: first and last, and others evenly between them."""
    if num_layers == 1:
        return [0]
    return [round(i * (target_layers - 1) / (num_layers - 1)) for i in range(num_layers)]


class DraftModelNet(nn.Module):
    """The trained parameters, float32."""

    def __init__(self, target: ModelSpec, num_layers: int) -> None:
        super().__init__()
        self.spec = replace(target, num_layers=num_layers)
        self.layers = nn.ModuleList(Layer(self.spec) for _ in range(num_layers))
        self.norm = RMSNorm(target.hidden_size, target.norm_eps)

    def initialise(self, weights: WeightSource, layers: Sequence[int]) -> None:
        """Copy these layers of the target, one for each of its own, and the final norm."""
        names = {PREFIX + name: parameter for name, parameter in self.named_parameters()}
        canonical = {file_name(HF_NAMES, name): name for name in _canonical_names(self.spec)}
        with torch.no_grad():
            for name, parameter in names.items():
                own = canonical[name]
                if own.startswith("layers."):
                    _, layer, rest = own.split(".", 2)
                    own = f"layers.{layers[int(layer)]}.{rest}"
                parameter.copy_(weights.tensor(own))

    def forward(self, embedded: Tensor, num_last: int, starts: Tensor) -> Tensor:
        """What the head reads at the last columns (B, num_last, H); embedded (B, T, H), padding before `starts` (B)."""
        x = embedded.float()
        for i, layer in enumerate(self.layers):
            is_last = i == len(self.layers) - 1
            x, _ = layer.begin(x, num_last if is_last else x.shape[1], starts)
        return self.norm(x)


def _canonical_names(spec: ModelSpec) -> list[str]:
    """All names that a layer of any family may have."""
    own = [name for name in HF_NAMES if name.startswith("layers.")]
    return ["norm.weight", *(name.replace("{i}", str(i)) for i in range(spec.num_layers) for name in own)]
