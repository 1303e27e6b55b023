"""The training loop: batches in a fixed order until the time is up, measured and kept as it goes."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foreword.errors import ConfigError
from foreword.train.data.batches import Batch, BatchOrder, Position, collate, in_order
from foreword.train.data.features import Entry, FeatureStore
from foreword.train.loop.optimiser import optimiser_of
from foreword.train.loop.resume_state import CHECKPOINT, Progress, load_checkpoint, save_checkpoint
from foreword.train.methods.method import Losses, Measures, Method, Staged

_SMOOTH = 0.98  # of the shown loss


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """How to optimise. The learning rate follows time, or steps where `max_steps` is given (then runs repeat exactly)."""

    time_budget_s: float = math.inf
    reserve_s: float = 0.0  # of it, for the last measurement
    max_steps: int | None = None
    batch_tokens: int = 512  # answer columns a batch
    max_len: int = 512  # columns: a prompt's beginning beyond it is left out
    learning_rate: float = 1e-3
    final_rate: float = 0.05  # of the learning rate, at the end of the cosine
    warm_up: float = 0.02  # share of the run
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    seed: int = 0
    eval_every_s: float = 300.0
    save_every_s: float = 120.0
    eval_answers: int = 160  # most held-out answers measured
    dtype: torch.dtype = torch.bfloat16  # of the matrix products

    def __post_init__(self) -> None:
        if not math.isfinite(self.time_budget_s) and self.max_steps is None:
            raise ConfigError("a run needs an end: give time_budget_s or max_steps")


@dataclass(frozen=True)
class Status:
    """What there is to show."""

    step: int
    done: float  # share of the run, 0 to 1
    left_s: float
    loss: float
    accuracy: Sequence[float]  # by depth
    tok_per_s: float
    epoch: float
    measures: Measures | None  # after a measurement


class Trainer:
    """One run.

    Args:
        method: what is trained.
        store: the features.
        options: see there.
        folder: for the checkpoint.
        facts: what the run is, for the checkpoint.
        on_status: called after every step.
        on_best: called with the measures when they are the best so far.
        on_measured: called after every measurement, last.
        clock: seconds that pass.
    """

    def __init__(
        self,
        method: Method,
        store: FeatureStore,
        options: LoopOptions,
        folder: Path,
        facts: dict[str, Any],
        on_status: Callable[[Status], None],
        on_best: Callable[[Measures, Progress], None],
        on_measured: Callable[[Progress], object] = lambda progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._end_s = clock, math.inf
        self._method, self._store, self._options = method, store, options
        self._path, self._facts = folder / CHECKPOINT, facts
        self._on_status, self._on_best, self._on_measured = on_status, on_best, on_measured
        train = [e for e in store.entries if e.split == "train" and e.answer_len >= 2]
        self._held_out = held_out_entries(store, options.eval_answers)
        if not train or not self._held_out:
            raise ConfigError(
                f"there are {len(train)} answers to train on and {len(self._held_out)} held-out greedy ones; both are "
                f"needed: give more prompts, or a larger --num-tokens"
            )
        self._order = BatchOrder(train, options.batch_tokens, options.seed)
        self._optimiser = optimiser_of(_parameter_groups(method, options), options.learning_rate)
        self.progress = load_checkpoint(self._path, method.module, self._optimiser, facts)
        order = (len(train), options.batch_tokens)
        if self.progress.step and self.progress.order != order:  # more data, or other batches: a new epoch begins
            self.progress.position = Position(self.progress.position.epoch + 1, 0)
        self.progress.order = order
        self._shown: list[float] = []
        self._step_s = 0.0  # what the last step took

    def run(self) -> Progress:
        """Train until the end, from wherever the run is; a checkpoint at any moment it may be killed."""
        options, progress = self._options, self.progress
        last_save_s = last_eval_s = progress.elapsed_s
        begun_s = self._clock() - progress.elapsed_s  # saving and measuring belong to the budget
        self._end_s = begun_s + options.time_budget_s
        session_s, session_tokens = 0.0, 0
        measured_step = progress.curve[-1]["step"] if progress.curve else -1
        while not self._is_over() or progress.step == 0:
            start_s = self._clock()
            losses, num_tokens = self._step()
            took_s = self._clock() - start_s
            session_s, session_tokens = session_s + took_s, session_tokens + num_tokens
            measures = None
            self._step_s, progress.elapsed_s = took_s, self._clock() - begun_s
            if progress.elapsed_s - last_eval_s >= options.eval_every_s and not self._is_over(options.reserve_s):
                measured_step = progress.step
                measures = self._measure()
                last_eval_s = progress.elapsed_s = self._clock() - begun_s
            if measures is not None or progress.elapsed_s - last_save_s >= options.save_every_s:
                last_save_s = progress.elapsed_s
                self.save()
            self._on_status(self._status(losses, session_tokens / session_s, measures))
        if measured_step != progress.step:
            self._measure()
        self.save()
        return progress

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self._path, self._method.module, self._optimiser, self.progress, self._facts)

    def evaluate(self) -> Measures:
        """Measure the held-out answers: as many batches of them as the time budget has room for."""
        with self._autocast():
            return self._method.evaluate(self._held_out_batches())

    def _held_out_batches(self) -> Iterator[tuple[Batch, list[str | None]]]:
        for number, entries in enumerate(in_order(self._held_out, self._options.batch_tokens)):
            if number and self._clock() >= self._end_s:
                return
            yield collate(self._store, entries, self._options.max_len), [entry.category for entry in entries]

    def _step(self) -> tuple[Losses, int]:
        """One batch; how many answer tokens it had."""
        progress = self.progress
        batch = collate(self._store, self._order.batch(progress.position), self._options.max_len)
        rate = self._options.learning_rate * _rate(self._share(), self._options)
        for group in self._optimiser.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        if isinstance(self._method, Staged):
            self._method.begin_step(self._share())
        with self._autocast():
            losses = self._method.loss(batch)
        self._optimiser.zero_grad()
        losses.loss.backward()
        torch.nn.utils.clip_grad_norm_(self._method.module.parameters(), self._options.clip_norm)
        self._optimiser.step()
        progress.step += 1
        progress.num_tokens += batch.num_answer_tokens
        progress.position = self._order.after(progress.position)
        return losses, batch.num_answer_tokens

    def _measure(self) -> Measures:
        progress = self.progress
        measures = self.evaluate()
        progress.curve.append(
            {
                "step": progress.step,
                "elapsed_s": round(progress.elapsed_s, 1),
                "answer_tokens": progress.num_tokens,
                "epoch": round(self._epoch(), 3),
                "loss": self._shown[0] if self._shown else None,
                "accept_by_depth": [round(rate, 4) for rate in measures.accept_by_depth],
                "tokens_per_step_chain": round(measures.tokens_per_step, 4),
            }
        )
        if measures.tokens_per_step > progress.best:
            progress.best = measures.tokens_per_step
            self._on_best(measures, progress)
        self._on_measured(progress)
        return measures

    def _status(self, losses: Losses, tok_per_s: float, measures: Measures | None) -> Status:
        values = [float(losses.loss.detach()), *losses.accuracy]
        if len(self._shown) != len(values):
            self._shown = values
        keep = min(_SMOOTH, 1 - 1 / (self.progress.step + 1))
        self._shown = [keep * old + (1 - keep) * new for old, new in zip(self._shown, values, strict=True)]
        share = self._share()
        left_s = self.progress.elapsed_s * (1 - share) / share if share else math.inf
        return Status(
            self.progress.step, share, left_s, self._shown[0], self._shown[1:], tok_per_s, self._epoch(), measures
        )

    def _epoch(self) -> float:
        position = self.progress.position
        return position.epoch + position.batch / self._order.num_batches(position.epoch)

    def _share(self) -> float:
        """How much of the run is done."""
        by_time = self.progress.elapsed_s / self._train_s
        by_steps = self.progress.step / self._options.max_steps if self._options.max_steps else 0.0
        return min(1.0, by_steps if self._options.max_steps else by_time)

    def _is_over(self, ahead_s: float = 0.0) -> bool:
        """Whether there is no time for a step as long as the last one, `ahead_s` from now."""
        return self._share() >= 1.0 or self.progress.elapsed_s + self._step_s + ahead_s > self._train_s

    @property
    def _train_s(self) -> float:
        return max(self._options.time_budget_s - self._options.reserve_s, 0.0) or 1e-9

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._options.dtype == torch.bfloat16)


def held_out_entries(store: FeatureStore, most: int) -> list[Entry]:
    """Held-out greedy answers, spread over the data: what a chain would accept is known for greedy ones alone."""
    entries = [e for e in store.entries if e.split == "held_out" and e.temperature == 0.0 and e.answer_len >= 2]
    stride = max(1, len(entries) // most)
    return entries[::stride][:most]


def _parameter_groups(method: Method, options: LoopOptions) -> list[dict[str, Any]]:
    """Matrices, which decay, and the rest; those that learn at a rate of their own in groups after them."""
    factors = method.rate_factors if isinstance(method, Staged) else {}
    groups: dict[tuple[float, bool, bool], list[torch.nn.Parameter]] = {(1.0, True, False): [], (1.0, False, False): []}
    for name, parameter in method.module.named_parameters():
        factor = next((value for start, value in factors.items() if name.startswith(start)), 1.0)
        decays = parameter.ndim >= 2
        is_inner = decays and name.startswith(method.inner)
        groups.setdefault((factor, decays, is_inner), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": options.weight_decay if decays else 0.0,
            "factor": factor,
            "is_inner": is_inner,
        }
        for (factor, decays, is_inner), parameters in groups.items()
    ]


def _rate(share: float, options: LoopOptions) -> float:
    """Warm-up, then a cosine down to `final_rate`."""
    if share < options.warm_up:
        return max(share, 1e-4) / options.warm_up
    done = (share - options.warm_up) / max(1e-9, 1 - options.warm_up)
    return options.final_rate + (1 - options.final_rate) * (1 + math.cos(math.pi * done)) / 2
