"""Tensors by canonical name: the `WeightSource` of `runtime/base.py`, spelled again to import no runtime."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Weights(Protocol):
    """Where parameters come from, tensor by tensor."""

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes when the weights do."""
        ...

    def has_tensor(self, name: str) -> bool:
        """Whether there is a tensor of this canonical name."""
        ...

    def tensor(self, name: str) -> "Tensor":
        """The tensor; never write to it."""
        ...
