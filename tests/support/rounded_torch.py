"""The torch runtime with the native runtime's rounding: its linear maps round weights and inputs as the kernels do.

What remains between the two is the order of sums, but for steps: where a value lies at the edge between two int8 numbers, the
last bits of float32 decide which of them it becomes.
"""

from typing import Any, final
from unittest.mock import patch

import torch
from torch import Tensor

from foreword.config import ModelSpec
from foreword.runtime import torch_decoder, torch_layers
from foreword.runtime.base import Need, WeightSource
from foreword.runtime.torch_runtime import TorchRuntime
from tests.native.models import chain
from tests.native.reference import fake_activations, fake_int8


@final
class RoundedLinear:
    """`TorchLinear` in int8. Heads whose size is no multiple of 16 would be grouped otherwise: the kernels pad each."""

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device, dtype: torch.dtype) -> None:
        self._weight, self._bias = fake_int8(weight).float().T.contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        product = fake_activations(x).float() @ self._weight
        return product if self._bias is None else product + self._bias

    def add_to(self, x: Tensor, inputs: Tensor) -> Tensor:
        return x + self(inputs)


def rounded_decoder(spec: ModelSpec, weights: WeightSource) -> Any:
    """A decoder of torch, float32, whose maps are `RoundedLinear`s and whose embedding is kept in bfloat16."""
    with (
        patch.object(torch_layers, "TorchLinear", RoundedLinear),
        patch.object(torch_decoder, "TorchLinear", RoundedLinear),
    ):
        decoder: Any = TorchRuntime("cpu", "float32").decoder(spec, weights)
    decoder._embedding = decoder._embedding.bfloat16().float()
    return decoder


def read_texts(decoder: Any, texts: list[list[int]]) -> Tensor:
    """Logits of some texts of one length, each read at once (texts, tokens, vocabulary)."""
    cache, found = decoder.new_cache(), []
    for text in texts:
        slot = cache.open(len(text))
        found.append(decoder.forward(chain(text, 0, slot), cache, Need(logits=range(len(text)))).logits)
        cache.close(slot)
    return torch.stack(found)


def nearest(logits: Tensor, expected: Tensor) -> float:
    """How far logits (texts, tokens, vocabulary) are from those expected, as a part of their spread: at each token in the text that is
    nearest, as a step in one text is none in another, while what is computed wrongly is wrong in all. The largest over tokens."""
    return float(((logits - expected).abs().amax(-1) / expected.std()).amin(0).max())
