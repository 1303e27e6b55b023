"""Training Medusa-2: the heads, and the target with them, so that its states tell more of what comes [medusa24].

    first    the heads alone learn, on the original's states
    then     loss = sum over heads of 0.8^k CE  +  KL(original || tuned) at every token of the answers

The heads' loss counts `heads_weight` times in what tunes the target, which ramps up to it; the KL holds the target to what it
said. Adapters learn at a quarter of the heads' rate. What comes out is another model, saved whole, with its heads beside it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foreword.checkpoint.opened import open_checkpoint
from foreword.config import ModelSpec
from foreword.draft.heads.medusa2 import FOLDER
from foreword.train.data.batches import Batch
from foreword.train.data.features import FeatureStore
from foreword.train.loop.divergence import Change, divergence, weighted_gradient
from foreword.train.loop.settings import TrainSettings
from foreword.train.methods import medusa
from foreword.train.methods.medusa import Medusa
from foreword.train.methods.medusa_net import MedusaNet
from foreword.train.methods.method import Losses, Measures, RunFacts, TargetTables
from foreword.train.methods.tuned_target import TunedTarget, check_tuning
from foreword.train.out.model_files import write_model

HEADS_ONLY = 0.3  # of the run
_RAMP = 0.3  # of the run, after that
_ADAPTERS = "adapters"


class Medusa2Net(nn.Module):
    """What is trained: the heads and the adapters, which live in the target."""

    def __init__(self, heads: MedusaNet, adapters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.heads, self.adapters = heads, nn.ParameterDict(adapters)


class Medusa2:
    """Satisfies `Method` and `Staged`.

    Args:
        heads: as Medusa trains them, made for the original.
        tuned: the target with adapters.
        target: the original.
        heads_weight: of the heads' loss in what tunes the target.
    """

    name = "medusa2"
    inner: tuple[str, ...] = ()
    rate_factors: Mapping[str, float] = {_ADAPTERS + ".": 0.25}

    def __init__(self, heads: Medusa, tuned: TunedTarget, target: TargetTables, heads_weight: float) -> None:
        self.module = Medusa2Net(heads.module, tuned.adapters())
        self._heads, self._tuned, self._target, self._heads_weight = heads, tuned, target, heads_weight
        self._head = target.head.float()
        self._share, self._change = 0.0, Change()

    def begin_step(self, share: float) -> None:
        """How much of the run is done."""
        self._share = share

    @property
    def _weight(self) -> float:
        """Of the heads' loss in what tunes the target, now: from 0 along a quarter of a sine."""
        done = min(1.0, (self._share - HEADS_ONLY) / _RAMP)
        return self._heads_weight * math.sin(done * math.pi / 2)

    def loss(self, batch: Batch) -> Losses:
        """The heads' loss, and after the first stage the divergence with it."""
        original = self._tuned.hidden(batch, is_tuned=False)
        if self._share < HEADS_ONLY:
            return self._heads.loss(replace(batch, hidden=original))
        hidden = self._tuned.hidden(batch, is_tuned=True)
        losses = self._heads.loss(replace(batch, hidden=weighted_gradient(hidden, self._weight)))
        rows = _speaking(batch)
        kl = divergence(hidden[:, :-1].flatten(0, 1)[rows], original[:, :-1].flatten(0, 1)[rows], self._head)
        return Losses(losses.loss + kl, losses.num_right, losses.num_places)

    def evaluate(self, batches: Iterable[tuple[Batch, list[str | None]]]) -> Measures:
        """As Medusa's, on the tuned target's states; and how far it has moved from the original."""
        self._change = Change()
        measures = self._heads.evaluate(self._read(batches))
        return replace(measures, also=self._change.facts())

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """The tuned target as a model of its own in `folder`, its heads in `folder`/medusa."""
        told = {**facts, **self._change.facts(), "base": self._target.source}
        told["base_fingerprint"] = told.pop("target_fingerprint", self._target.fingerprint)
        write_model(folder, self._target, self._tensor, told)
        tuned = open_checkpoint(folder)
        # The heads are this model's and no other's: they belong to it by its fingerprint.
        own = {"target": folder.resolve().name, "target_fingerprint": tuned.fingerprint}
        self._heads.save(folder / FOLDER, {**told, **own})

    def _tensor(self, name: str) -> Tensor:
        """A tensor of the tuned target: the original's as it is, or with what its adapter adds, float32."""
        assert self._target.weights is not None
        original, delta = self._target.weights.tensor(name), self._tuned.delta(name)
        return original if delta is None else original.float() + delta

    def _read(self, batches: Iterable[tuple[Batch, list[str | None]]]) -> Iterator[tuple[Batch, list[str | None]]]:
        for batch, categories in batches:
            hidden, original = (self._tuned.hidden(batch, is_tuned=is_tuned) for is_tuned in (True, False))
            rows = _speaking(batch)
            said = batch.token_ids[:, 1 - batch.answer_columns :].flatten()
            now, before = (x[:, :-1].flatten(0, 1)[rows] for x in (hidden, original))
            self._change.add(now, before, self._head, said[rows])
            yield replace(batch, hidden=hidden), categories


def _speaking(batch: Batch) -> Tensor:
    """Rows among the answers' columns but the last (B * (A - 1)) that a token of the answer follows."""
    column = torch.arange(batch.num_columns - batch.answer_columns, batch.num_columns - 1)
    return (column >= batch.answer_starts[:, None]).flatten().nonzero().flatten()


def taps_for(spec: ModelSpec) -> tuple[int, ...]:
    """None are read, nor features; one folder of answers serves all methods."""
    return medusa.taps_for(spec)


def run_facts(settings: TrainSettings) -> RunFacts:
    """Heads or adapters of other sizes are another run."""
    heads = medusa.run_facts(settings)
    return RunFacts(
        {**heads.run, "lora_rank": settings.lora_rank}, {**heads.told, "heads_weight": settings.heads_weight}
    )


def check(target: TargetTables, settings: TrainSettings) -> None:
    """`ConfigError` where the target cannot be tuned: without its files, or without the library that does it."""
    check_tuning(target)


def make(target: TargetTables, store: FeatureStore, settings: TrainSettings, resume: Path) -> Medusa2:
    """Fresh heads beside a target that says what it said."""
    tuned = TunedTarget(target, settings.lora_rank, settings.seed, settings.dtype)
    return Medusa2(medusa.make(target, store, settings, resume), tuned, target, settings.heads_weight)
