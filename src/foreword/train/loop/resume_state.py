"""A training run on disk: everything that going on needs, written whole or not at all."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from foreword.errors import ConfigError
from foreword.files import whole_file
from foreword.train.data.batches import Position
from foreword.train.loop.optimiser import Optimiser


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    position: Position = field(default_factory=Position)
    elapsed_s: float = 0.0  # spent in training, earlier sessions included
    num_tokens: int = 0  # answer tokens seen
    order: tuple[int, int] = (0, 0)  # answers and tokens a batch that the order of batches is made of
    best: float = 0.0  # best held-out tokens a step
    curve: list[dict[str, Any]] = field(default_factory=list)  # a point each measurement


def save_checkpoint(
    path: Path, module: torch.nn.Module, optimiser: Optimiser, progress: Progress, facts: dict[str, Any]
) -> None:
    """Write weights, optimiser and progress; `facts` say what the run is and are compared when it goes on."""
    state = {
        "module": module.state_dict(),
        "optimiser": optimiser.state_dict(),
        "progress": asdict(progress),
        "facts": facts,
    }
    with whole_file(path) as file:
        torch.save(state, file)


def load_checkpoint(path: Path, module: torch.nn.Module, optimiser: Optimiser, facts: dict[str, Any]) -> Progress:
    """Go on where a run was; `ConfigError` where it was another run. Without a file, begin."""
    if not path.is_file():
        return Progress()
    state = torch.load(path, map_location="cpu", weights_only=True)
    facts = {"optimiser": "adamw", **facts}
    known = {"optimiser": "adamw", **state["facts"]}  # as they all were
    if known["optimiser"] != facts["optimiser"]:
        raise ConfigError(
            f"{path} belongs to a run whose parameters were moved by {known['optimiser']}, here it would be {facts['optimiser']} "
            f"(eagle3 and eagle: muon from torch 2.9 on); go on with the torch it began with, or give another --out"
        )
    for key in sorted({*known, *facts}):
        if known.get(key) != facts.get(key):
            raise ConfigError(
                f"{path} belongs to a run with {key} {known.get(key)!r}, now it is {facts.get(key)!r}; "
                f"go on with the same options, or give another --out"
            )
    module.load_state_dict(state["module"])
    optimiser.load_state_dict(state["optimiser"])
    values = state["progress"]
    return Progress(**{**values, "position": Position(**values["position"]), "order": tuple(values["order"])})
