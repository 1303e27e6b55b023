"""The draft model as it is trained: the target's first layers and its final norm, between its frozen tables.

Parameter names, with "model." before them, are those of Hugging Face's files.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from foreword.checkpoint.name_map import HF_NAMES, file_name
from foreword.config import ModelSpec
from foreword.runtime.base import WeightSource
from foreword.train.methods.eagle3_net import RMSNorm
from foreword.train.methods.layer_net import Layer

PREFIX = "model."


class DraftModelNet(nn.Module):
    """The trained parameters, float32."""

    def __init__(self, target: ModelSpec, num_layers: int) -> None:
        super().__init__()
        self.spec = replace(target, num_layers=num_layers)
        self.layers = nn.ModuleList(Layer(self.spec) for _ in range(num_layers))
        self.norm = RMSNorm(target.hidden_size, target.norm_eps)

    def initialise(self, weights: WeightSource) -> None:
        """Copy the target's first layers and its final norm."""
        canonical = {file_name(HF_NAMES, name): name for name in _canonical_names(self.spec)}
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(weights.tensor(canonical[PREFIX + name]))

    def forward(self, embedded: Tensor, num_last: int, starts: Tensor) -> Tensor:
        """What the head reads at the last columns (B, num_last, H); embedded (B, T, H), padding before `starts` (B)."""
        x = embedded.float()
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            is_last = i == len(self.layers) - 1
            x, _ = layer.begin(x, num_last if is_last else x.shape[1], starts)
        return self.norm(x)


def _canonical_names(spec: ModelSpec) -> list[str]:
    """All names that a layer of any family may have."""
    own = [name for name in HF_NAMES if name.startswith("layers.")]
    return ["norm.weight", *(name.replace("{i}", str(i)) for i in range(spec.num_layers) for name in own)]
