"""Medusa's heads as they are trained [medusa24]: residual blocks on the target's final hidden state, then a head.

    h        the final norm's output at token t
    head k   x = h, then x + silu(W x + b) for each of its layers; logits = O x; it predicts token t + 2 + k

Heads may share O or have one each. Shared, it is trained by all of them and a drafting step reads it once. Parameter names
are those of the file format.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class MedusaSpec:
    """Sizes of the heads."""

    hidden_size: int
    draft_vocab_size: int
    num_heads: int
    num_layers: int
    shares_output: bool


class Block(nn.Module):
    """The residual layers of one head."""

    def __init__(self, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape (..., H), the residual stream in float32."""
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class MedusaNet(nn.Module):
    """The trained parameters, float32."""

    def __init__(self, spec: MedusaSpec) -> None:
        super().__init__()
        self.spec = spec
        self.blocks = nn.ModuleList(Block(spec.hidden_size, spec.num_layers) for _ in range(spec.num_heads))
        num_outputs = 1 if spec.shares_output else spec.num_heads
        self.lm_heads = nn.ModuleList(
            nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False) for _ in range(num_outputs)
        )

    def initialise(self, head: Tensor) -> None:
        """Blocks that change nothing, and the target's head rows of the draft vocabulary (V_d, H): the target's logits."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.startswith("lm_heads."):
                    parameter.copy_(head)
                else:
                    parameter.zero_()

    def states(self, hidden: Tensor, head: int) -> Tensor:
        """What the output of one head reads, from the target's hidden states (n, H)."""
        return self.blocks[head](hidden.float())

    def output(self, head: int) -> Tensor:
        """The matrix O of one head (V_d, H)."""
        return self.lm_heads[0 if self.spec.shares_output else head].get_parameter("weight")
