"""What moves the parameters: Muon for the matrices inside a network, AdamW for all else [jordan24, loshchilov19].

Muon makes a matrix's step equally long in every direction, so that rare directions are learned as fast as common ones. It
is not meant for tables with one row per token, which most batches hardly touch, nor for vectors. Its steps are scaled to the
size of AdamW's, so one learning rate serves both. Without it (torch before 2.9) all is AdamW's.
"""

from collections.abc import Sequence
from typing import Any

import torch

HAS_MUON = hasattr(torch.optim, "Muon")


def kind_of(inner: Sequence[str]) -> str:
    """What moves a network with such matrices (`Method.inner`), in a word."""
    return "muon" if inner and HAS_MUON else "adamw"


class Optimiser:
    """Some optimisers as one, each over parameters of its own."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self._parts = list(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all parts."""
        return [group for part in self._parts for group in part.param_groups]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Move the parameters."""
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """What going on needs."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        parts = state.get("parts", [state])  # as one alone was written before there were several
        for part, values in zip(self._parts, parts, strict=True):
            part.load_state_dict(values)


def optimiser_of(groups: Sequence[dict[str, Any]], rate: float) -> Optimiser:
    """For groups of parameters with a weight decay each; "is_inner" marks those that Muon takes."""
    inner = [group for group in groups if group["is_inner"] and HAS_MUON]
    others = [group for group in groups if not (group["is_inner"] and HAS_MUON)]
    parts: list[torch.optim.Optimizer] = []
    if others:
        parts.append(torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), fused=True))
    if inner:
        parts.append(torch.optim.Muon(inner, lr=rate, adjust_lr_fn="match_rms_adamw"))
    return Optimiser(parts)
