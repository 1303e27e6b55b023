"""Norms of rows, each with a weight."""

from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class Norm(Protocol):
    """Normalises every row."""

    def __call__(self, x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """Apply it."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory that the parameters take."""
        ...


class RMSNorm:
    """x / sqrt(mean x^2 + eps) * weight over the last dimension, sums in float32 or wider [zhang19].

    [x, -x] has mean 0 and the mean square of x, so its layer norm is x's RMS norm: one fused operator for seven.
    """

    def __init__(self, weight: Float[Tensor, " dim"], eps: float) -> None:
        self._weight = torch.cat((weight, weight))
        self._eps = eps

    def __call__(self, x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """Normalise every row."""
        doubled = torch.cat((x, -x), dim=-1)
        return F.layer_norm(doubled, self._weight.shape, self._weight, None, self._eps)[..., : x.shape[-1]]

    @property
    def num_bytes(self) -> int:
        """Memory that the weight takes."""
        return self._weight.nbytes


class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension [ba16]."""

    def __init__(self, weight: Float[Tensor, " dim"], bias: Float[Tensor, " dim"] | None, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """Normalise every row."""
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)

    @property
    def num_bytes(self) -> int:
        """Memory that the parameters take."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)


class HeadNorm:
    """A norm of query or key heads (nodes, heads, dim), in place.

    Args:
        norm: over each head, or over all of them as one row; without a weight where `weights` has one for each head.
        is_joined: whether it is over all heads as one row.
        weights: one a head.
    """

    def __init__(self, norm: Norm, is_joined: bool = False, weights: Float[Tensor, "heads dim"] | None = None) -> None:
        self._norm, self._is_joined, self._weights = norm, is_joined, weights

    def __call__(self, heads: Float[Tensor, "nodes heads dim"]) -> None:
        """Normalise in place."""
        normed = self._norm(heads.flatten(1)).view(heads.shape) if self._is_joined else self._norm(heads)
        heads.copy_(normed if self._weights is None else normed * self._weights)

    @property
    def num_bytes(self) -> int:
        """Memory that the parameters take."""
        return self._norm.num_bytes + (0 if self._weights is None else self._weights.nbytes)
