"""Medusa heads on a runtime: all heads of all requests in a few products.

layer 0      one matrix for all heads, since all read the same hidden state
layer 1..    one product per head
output       one product for all heads where they share it, else one per head
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.runtime.base import Projection, Runtime


@final
class MedusaHeads:
    """Logits of each head from the target's final hidden states.

    Args:
        blocks: by head, the weight (H, H) and bias (H) of each residual layer, float32.
        outputs: one matrix (V, H) per head, or one for all.
        runtime: what computes.
    """

    def __init__(
        self, blocks: Sequence[Sequence[tuple[Tensor, Tensor | None]]], outputs: Sequence[Tensor], runtime: Runtime
    ) -> None:
        self.num_heads, self.num_rows = len(blocks), len(outputs[0])
        self._first = runtime.projection(
            torch.cat([block[0][0] for block in blocks]), _joined_bias([block[0] for block in blocks])
        )
        self._later: list[list[Projection]] = [
            [runtime.projection(weight, bias) for weight, bias in block[1:]] for block in blocks
        ]
        self._is_deep = any(self._later)
        self._outputs = [runtime.projection(output) for output in outputs]

    def __call__(self, hidden: Float[Tensor, "n hidden"], num_heads: int) -> Float[Tensor, "n heads vocab"]:
        """Logits of the first `num_heads` heads, float32."""
        num_rows, size = hidden.shape
        gates = self._first(hidden).view(num_rows, self.num_heads, size)[:, :num_heads]
        states = hidden[:, None] + torch.nn.functional.silu(gates)
        if self._is_deep:
            states = torch.stack([self._deeper(states[:, head], head) for head in range(num_heads)], dim=1)
        if len(self._outputs) == 1:
            return self._outputs[0](states.reshape(-1, size)).view(num_rows, num_heads, -1).float()
        return torch.stack([self._outputs[head](states[:, head]) for head in range(num_heads)], dim=1).float()

    def _deeper(self, states: Float[Tensor, "n hidden"], head: int) -> Float[Tensor, "n hidden"]:
        """Through the further layers of one head."""
        for layer in self._later[head]:
            states = states + torch.nn.functional.silu(layer(states))
        return states


def _joined_bias(layers: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor | None:
    if all(bias is None for _, bias in layers):
        return None
    return torch.cat([weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in layers])
