"""A linear map as the torch runtime holds it."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.errors import ConfigError


class TorchLinear:
    """`Projection` of runtime/base.py: x W^T + b, in the runtime's dtype."""

    def __init__(
        self,
        weight: Float[Tensor, "out in"],
        bias: Float[Tensor, " out"] | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        if weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            bias_shape = None if bias is None else tuple(bias.shape)
            raise ConfigError(f"weight has shape {tuple(weight.shape)}, bias {bias_shape}; wanted: (out, in) and (out,)")
        self.weight = weight.detach().to(device, dtype)
        self.bias = None if bias is None else bias.detach().to(device, dtype)

    def __call__(self, inputs: Float[Tensor, "n in"]) -> Float[Tensor, "n out"]:
        """Apply it."""
        return F.linear(inputs.to(self.weight.device, self.weight.dtype), self.weight, self.bias)

    def add_to(self, residual: Float[Tensor, "n out"], inputs: Float[Tensor, "n in"]) -> Float[Tensor, "n out"]:
        """Residual + map of the inputs, in one call (maps with a bias are never added here)."""
        return torch.addmm(residual, inputs, self.weight.T)

    @property
    def num_bytes(self) -> int:
        """Memory that the parameters take."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)
