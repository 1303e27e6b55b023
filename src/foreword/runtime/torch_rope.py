"""Rotary position embedding [su21]: the rows of cosines and sines that a pass needs, and the turn itself."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.config import Llama3RopeScaling, QueryTemperature, RopeSpec, YarnRopeScaling


@dataclass(frozen=True, eq=False)
class RopeRows:
    """What the nodes of a pass turn by."""

    cos: Float[Tensor, "nodes 1 dim"]
    signed_sin: Float[Tensor, "nodes 1 dim"]
    query_scale: Float[Tensor, "nodes 1 1"] | None = None


def inverse_frequencies(rope: RopeSpec, head_dim: int, device: torch.device) -> Float[Tensor, " half"]:
    """Radians per position for each pair of rotated dimensions, float32."""
    dim = head_dim if rope.num_rotated is None else rope.num_rotated
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
    frequencies = 1.0 / rope.theta**exponents / rope.linear_factor
    if rope.divisors is not None:
        frequencies = frequencies / torch.tensor(rope.divisors, dtype=torch.float32, device=device)
    if rope.yarn is not None:
        frequencies = _stretch_yarn(frequencies, rope.yarn, rope.theta)
    return frequencies if rope.llama3 is None else _stretch_llama3(frequencies, rope.llama3)


class RopeTable:
    """The rotary embedding of some layers: makes the rows of a pass."""

    def __init__(self, rope: RopeSpec, head_dim: int, device: torch.device) -> None:
        self._rope, self._frequencies = rope, inverse_frequencies(rope, head_dim, device)

    def rows(self, positions: Int[Tensor, " nodes"], dtype: torch.dtype) -> RopeRows:
        """Cosines, and sines signed for `apply_rope`, of every node; angles are float32, as in transformers."""
        angles = positions[:, None].to(torch.float32) * self._frequencies  # (nodes, half)
        cos, sin = (table * self._rope.magnitude for table in (angles.cos(), angles.sin()))
        signed_sin = torch.cat((-sin, sin), dim=-1)[:, None].to(dtype)
        cosines = torch.cat((cos, cos), dim=-1)[:, None].to(dtype)
        temperature = self._rope.temperature
        scale = None if temperature is None else query_scales(positions, temperature)[:, None, None].to(dtype)
        return RopeRows(cosines, signed_sin, scale)


def query_scales(positions: Int[Tensor, " nodes"], temperature: QueryTemperature) -> Float[Tensor, " nodes"]:
    """What the queries at these positions are multiplied by, float32."""
    steps = torch.floor(positions / temperature.original_context_len)
    return 1.0 + temperature.beta * torch.log(1.0 + steps)


def apply_rope(heads: Float[Tensor, "nodes heads dim"], rows: RopeRows) -> None:
    """Turn dimension i with i + half of the rotated ones, in place: (a, b) becomes (a cos - b sin, b cos + a sin)."""
    turned = heads[..., : rows.cos.shape[-1]]
    swapped = turned.roll(turned.shape[-1] // 2, -1)
    turned.mul_(rows.cos).addcmul_(swapped, rows.signed_sin)


def _stretch_llama3(frequencies: Float[Tensor, " half"], scaling: Llama3RopeScaling) -> Float[Tensor, " half"]:
    """Divide low frequencies by `factor`, keep high ones, blend linearly between [llama3]."""
    turns = frequencies * (scaling.original_context_len / (2 * math.pi))  # full turns within the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)


def _stretch_yarn(
    frequencies: Float[Tensor, " half"], scaling: YarnRopeScaling, theta: float
) -> Float[Tensor, " half"]:
    """Divide low frequencies by `factor`, keep high ones, blend linearly by their number [peng23]."""
    dim = 2 * len(frequencies)

    def number(turns: float) -> float:
        """Of the frequency that makes so many turns within the original context."""
        return dim * math.log(scaling.original_context_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = number(scaling.beta_fast), number(scaling.beta_slow)
    if scaling.rounds_range:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0.0
    ramp = (torch.arange(len(frequencies), dtype=torch.float32, device=frequencies.device) - low) / (high - low)
    ramp = ramp.clamp(0.0, 1.0)
    return frequencies / scaling.factor * ramp + frequencies * (1.0 - ramp)
