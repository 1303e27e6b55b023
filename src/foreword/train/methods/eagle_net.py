"""EAGLE-1's network as it is trained [eagle24]: one layer over fc of (embedding of the next token, feature).

    pair t       embedding of token t+1 beside the target's feature f_t (its final norm's output); at position t
    output       a guess at f_{t+1}; the target's own head makes it a guess at token t+2

The layer norms nothing before its attention, and nothing follows it: features are what the head reads. In a rollout
guesses stand for features. Parameter names are those of the file format.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from foreword.config import ModelSpec
from foreword.train.methods.eagle3_net import Seen
from foreword.train.methods.layer_net import Layer


class EagleNet(nn.Module):
    """The trained parameters, float32. `feature_scale` is the features' root mean square: the unit of their distances."""

    feature_scale: Tensor

    def __init__(self, target: ModelSpec) -> None:
        super().__init__()
        self.spec = replace(target, num_layers=1, has_first_norm=False, qkv_bias=False, qk_norm=False)
        self.fc = nn.Linear(2 * target.hidden_size, target.hidden_size)
        layer = Layer(self.spec)
        self.layers, self._layer = nn.ModuleList([layer]), (layer,)  # the second for its type alone
        self.register_buffer("feature_scale", torch.ones(()))

    def initialise(self, weight: Tensor, bias: Tensor, feature_scale: Tensor, generator: torch.Generator) -> None:
        """Fc as given: a first guess by itself. The layer's maps random, its outputs so small that they hardly add to it.

        Args:
            weight: of fc, (H, 2 H).
            bias: of fc.
            feature_scale: root mean square of the features.
            generator: of the random numbers.
        """
        with torch.no_grad():
            for name, parameter in self.layers.named_parameters():
                if parameter.ndim == 2:
                    gain = 0.1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                    parameter.normal_(0.0, gain / math.sqrt(parameter.shape[1]), generator=generator)
            self.fc.weight.copy_(weight)
            self.fc.bias.copy_(bias)
            self.feature_scale.copy_(feature_scale)

    def begin(self, features: Tensor, embedded: Tensor, num_answers: int, starts: Tensor) -> tuple[Tensor, Seen]:
        """Guessed features after the last `num_answers` pairs, and what all pairs left; both (B, T, H)."""
        return self._layer[0].begin(self._inputs(features, embedded), num_answers, starts)

    def advance(self, state: Tensor, embedded: Tensor, seen: Seen, step: int, starts: Tensor) -> Tensor:
        """The next guesses, on its own last ones (B, A, H)."""
        inputs = self._inputs(state, embedded)
        return self._layer[0].advance(inputs, seen, step, starts)

    def _inputs(self, features: Tensor, embedded: Tensor) -> Tensor:
        return self.fc(torch.cat((embedded.to(features.dtype), features), dim=-1)).float()
