"""Rotary position embedding [su21]: the rows of cosines and sines that a pass needs, and the turn itself."""

import math
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.config import Llama3RopeScaling, RopeSpec

RopeRows: TypeAlias = tuple[Float[Tensor, "nodes 1 dim"], Float[Tensor, "nodes 1 dim"]]


def inverse_frequencies(rope: RopeSpec, head_dim: int, device: torch.device) -> Float[Tensor, " half"]:
    """Radians per position for each pair of dimensions, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    frequencies = 1.0 / rope.theta**exponents / rope.linear_factor
    return frequencies if rope.llama3 is None else _stretch_llama3(frequencies, rope.llama3)


def rope_rows(positions: Int[Tensor, " nodes"], frequencies: Float[Tensor, " half"], dtype: torch.dtype) -> RopeRows:
    """Cosines, and sines signed for `apply_rope`, of every node; angles are float32, as in transformers."""
    angles = positions[:, None].to(torch.float32) * frequencies  # (nodes, half)
    cos, sin = angles.cos(), angles.sin()
    signed_sin = torch.cat((-sin, sin), dim=-1)[:, None].to(dtype)
    return torch.cat((cos, cos), dim=-1)[:, None].to(dtype), signed_sin


def apply_rope(heads: Float[Tensor, "nodes heads dim"], rows: RopeRows) -> None:
    """Turn dimension i with i + dim / 2, in place: (a, b) becomes (a cos - b sin, b cos + a sin)."""
    cos, signed_sin = rows
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cos).addcmul_(swapped, signed_sin)


def _stretch_llama3(frequencies: Float[Tensor, " half"], scaling: Llama3RopeScaling) -> Float[Tensor, " half"]:
    """Divide low frequencies by `factor`, keep high ones, blend linearly between [llama3]."""
    turns = frequencies * (scaling.original_context_len / (2 * math.pi))  # full turns within the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)
