"""The torch runtime: any device, any floating dtype; the reference that faster runtimes are compared with.

Logits may change in their last bits with the width of a pass, even in float32: attention adds in another order over
more rows, and so do some matrix products.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.config import ModelSpec
from foreword.errors import ConfigError, UnknownNameError
from foreword.runtime.base import WeightSource
from foreword.runtime.torch_decoder import TorchDecoder
from foreword.runtime.torch_linear import TorchLinear

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@final
class TorchRuntime:
    """`Runtime` of runtime/base.py. `ConfigError` for a dtype or device that torch cannot compute with here."""

    name = "torch"

    def __init__(self, device: str | torch.device = "cpu", dtype: str = "float32") -> None:
        if dtype not in _DTYPES:
            raise UnknownNameError("dtype of the torch runtime", dtype, _DTYPES)
        self.dtype = dtype
        self.device = _usable_device(device)

    def decoder(self, spec: ModelSpec, weights: WeightSource) -> TorchDecoder:
        """Build a decoder."""
        return TorchDecoder(spec, weights, self.device, _DTYPES[self.dtype])

    def projection(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None) -> TorchLinear:
        """Build a linear map."""
        return TorchLinear(weight, bias, self.device, _DTYPES[self.dtype])


def _usable_device(device: str | torch.device) -> torch.device:
    """The device, after a first allocation on it."""
    try:
        resolved = torch.device(device)
        torch.empty(1, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"device is {str(device)!r}, which torch cannot use here ({first_line}); try cpu") from error
    return resolved
