"""A training run on disk: everything that going on needs, written whole or not at all.

checkpoint.pt           the state, with a seal
checkpoint.pt.before    the one before it
*.damaged               what could not be read
"""

import copy
import logging
import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import torch

from foreword.errors import ConfigError
from foreword.files import put_aside
from foreword.seal import check_sealed, move_sealed, seal_path, sealed_file
from foreword.train.data.batches import Position
from foreword.train.loop.optimiser import Optimiser

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"
_SEALED = "the state of a training run"
# What reading a damaged file, or one of something else, raises.
_DAMAGED = (
    OSError, EOFError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, pickle.UnpicklingError,
)  # fmt: skip


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    position: Position = field(default_factory=Position)
    elapsed_s: float = 0.0  # spent in training, earlier sessions included
    num_tokens: int = 0  # answer tokens seen
    order: tuple[int, int] = (0, 0)  # answers and tokens a batch that the order of batches is made of
    best: float = 0.0  # best held-out tokens per step
    curve: list[dict[str, Any]] = field(default_factory=list)  # a point each measurement


def save_checkpoint(
    path: Path, module: torch.nn.Module, optimiser: Optimiser, progress: Progress, facts: dict[str, Any]
) -> None:
    """Write weights, optimiser and progress; `facts` say what the run is and are compared when it goes on.

    The state before is kept beside it, so that a damaged one costs little.
    """
    state = {
        "module": module.state_dict(),
        "optimiser": optimiser.state_dict(),
        "progress": asdict(progress),
        "facts": facts,
    }
    with sealed_file(path, _SEALED) as file:
        torch.save(state, cast(IO[bytes], file))
        move_sealed(path, _before(path))


def load_checkpoint(path: Path, module: torch.nn.Module, optimiser: Optimiser, facts: dict[str, Any]) -> Progress:
    """Go on where a run was; `ConfigError` where it was another run. Without a file, begin.

    A damaged file is told and put aside: the run goes on from the state before it, or begins anew.
    """
    fresh = copy.deepcopy((module.state_dict(), optimiser.state_dict()))
    for place in (path, _before(path)):
        if not place.is_file():
            continue
        try:
            state = _read(place)
        except _DAMAGED as error:
            _tell(place, error)
            continue
        _check_same(path, state["facts"], facts)
        try:
            module.load_state_dict(state["module"])
            optimiser.load_state_dict(state["optimiser"])
            return _progress(state["progress"])
        except _DAMAGED as error:
            _tell(place, error)
            module.load_state_dict(fresh[0])
            optimiser.load_state_dict(fresh[1])
    return Progress()


def forget_checkpoint(path: Path) -> None:
    """Put aside what there is: it cannot be gone on with."""
    for place in (path, _before(path)):
        if place.is_file():
            put_aside(place)


def _before(path: Path) -> Path:
    return path.with_name(path.name + ".before")


def _read(path: Path) -> dict[str, Any]:
    if seal_path(path).is_file():  # none beside what an older version wrote
        check_sealed(path, _SEALED, whole=True)
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or {"module", "optimiser", "progress", "facts"} - state.keys():
        raise ValueError("it is no state of a training run")
    return state


def _progress(values: dict[str, Any]) -> Progress:
    return Progress(**{**values, "position": Position(**values["position"]), "order": tuple(values["order"])})


def _tell(path: Path, error: Exception) -> None:
    aside = put_aside(path)
    reason = str(error).partition("\n")[0] or type(error).__name__
    logger.warning(
        "%s is damaged (%s): it is now %s; training goes on from the state before it, or begins anew",
        path,
        reason,
        aside.name,
    )


def _check_same(path: Path, known: dict[str, Any], facts: dict[str, Any]) -> None:
    """`ConfigError` where a state belongs to another run."""
    facts = {"optimiser": "adamw", **facts}
    known = {"optimiser": "adamw", **known}  # as they all were
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
