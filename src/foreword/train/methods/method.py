"""What a trainable drafter is: a new one is one file that satisfies `Method`; loop, checkpoints and card know no more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from foreword.config import ModelSpec
from foreword.runtime.base import WeightSource
from foreword.train.data.batches import Batch


@dataclass(frozen=True)
class RunFacts:
    """What a method's own settings say of a run."""

    run: Mapping[str, Any] = field(default_factory=dict)  # another value is another run
    told: Mapping[str, Any] = field(default_factory=dict)  # what else the card tells


@dataclass(frozen=True, eq=False)
class TargetTables:
    """What a drafter borrows of its target."""

    spec: ModelSpec
    embedding: Tensor  # (V, H)
    head: Tensor  # (V, H); the embedding where they are tied
    eos_token_ids: tuple[int, ...]
    fingerprint: str
    source: str  # what the model is called
    weights: WeightSource | None = None  # all of them, for drafters that begin as a part of the target


@dataclass(frozen=True)
class Losses:
    """One batch. Counts by depth; depth 0 is the first drafted token."""

    loss: Tensor  # scalar, with its graph
    num_right: list[int]  # the drafter's top-1 token is the target's
    num_places: list[int]

    @property
    def accuracy(self) -> list[float]:
        """Share of places where they agree, by depth."""
        return [right / max(1, places) for right, places in zip(self.num_right, self.num_places, strict=True)]


@dataclass(frozen=True)
class Measures:
    """Acceptance on held-out greedy answers, computed without running the verifier."""

    accept_by_depth: list[float]  # the d-th draft token is accepted, where all before it were
    tokens_per_step: float  # of a chain as deep as that list, walking each answer as decoding would
    first_depth_by_category: Mapping[str, float] = field(default_factory=dict)
    num_places: int = 0
    also: Mapping[str, float] = field(default_factory=dict)  # what else a method measures, for card and console


class Method(Protocol):
    """A drafter in training."""

    name: str  # as the drafters are called
    module: nn.Module  # what is optimised and saved
    inner: tuple[str, ...]  # how the names of matrices begin that turn states into states: Muon's (`optimiser`)

    def loss(self, batch: Batch) -> Losses:
        """Forward pass over a batch; the caller runs it under autocast and goes backward."""
        ...

    def evaluate(self, batches: Iterable[tuple[Batch, list[str | None]]]) -> Measures:
        """Measure held-out batches; with each batch its answers' categories."""
        ...

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write the drafter in the layout that it is served from; `facts` go into its config."""
        ...


@runtime_checkable
class Staged(Protocol):
    """A method whose training has stages, or parts that learn at rates of their own."""

    rate_factors: Mapping[str, float]  # of the learning rate, by how parameters' names begin; 1 for all others

    def begin_step(self, share: float) -> None:
        """Called before each step with the share of the run that is done, 0 to 1."""
        ...
