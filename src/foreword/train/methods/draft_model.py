"""Training a draft model for a target: distilled from it, started from its first layers [leviathan23, hinton15].

Embedding, final norm and layers begin as the target's; the embedding and the rows of the head that are drafted stay
the target's and are left out of the file. First layers, since they go on reading what they were made to read: layers
spread over the target begin worse and learn slower. What leaves them is far from what the head expects, and too sure
of itself, so the final norm begins smaller: by the factor that suits the data best.

At each token of an answer it learns the target's distribution over the draft vocabulary, mixed with the target's
choice. Teacher forcing is all it needs: after accepted guesses it has read the very text that the target wrote.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from foreword.checkpoint.families import FAMILIES
from foreword.config import ModelSpec
from foreword.errors import ConfigError
from foreword.train.data.batches import Batch, collate
from foreword.train.data.features import FeatureStore
from foreword.train.data.vocabulary import draft_ids, drafted_vocab, vocab_maps
from foreword.train.loop.losses import best_tokens, head_loss, mixed_targets
from foreword.train.loop.settings import TrainSettings
from foreword.train.methods.draft_model_net import PREFIX, DraftModelNet
from foreword.train.methods.eagle3 import taps_for as eagle3_taps
from foreword.train.methods.method import Losses, Measures, RunFacts, TargetTables
from foreword.train.out.layer_files import layer_config, write_drafter
from foreword.train.out.simulate import measure_batches

NUM_NODES = 4  # drafted tokens per step, unless the user says otherwise
EVAL_DEPTH = 4  # chains as long as those that are served
_NORM_SCALES = tuple(0.8**i for i in range(12))
_TRIAL_ANSWERS = 4


class DraftModel:
    """Satisfies `Method`.

    Args:
        net: the layers.
        target: whose tables they stand between.
        vocab_ids: target ids of the draft vocabulary, ascending.
        soft: weight of the target's distribution; the rest is that of its choice.
        dtype: of the matrix products outside autocast.
    """

    name = "draft_model"
    inner: tuple[str, ...] = ()

    def __init__(
        self, net: DraftModelNet, target: TargetTables, vocab_ids: Tensor, soft: float, dtype: torch.dtype
    ) -> None:
        self.module = net
        self._target, self._vocab_ids, self._soft, self._dtype = target, vocab_ids, soft, dtype
        self._embedding = target.embedding.to(dtype)
        self._head = target.head[vocab_ids].to(dtype)
        self._draft_ids = draft_ids(vocab_ids, target.spec.vocab_size)

    def loss(self, batch: Batch) -> Losses:
        """Mean cross-entropy over the tokens of the answers, where the target's choice is a token that is drafted."""
        return self._loss(batch, self._states(batch))

    def calibrate(self, batch: Batch) -> float:
        """Scale the final norm by the factor of least loss, and return it."""
        with torch.no_grad():
            states = self._states(batch)
            losses = [float(self._loss(batch, scale * states).loss) for scale in _NORM_SCALES]
            best = _NORM_SCALES[losses.index(min(losses))]
            self.module.norm.weight.mul_(best)
        return best

    def _loss(self, batch: Batch, states: Tensor) -> Losses:
        wanted = self._draft_ids[batch.choices[:, :-1].clamp_min(0)].flatten()
        is_place = self._places(batch).flatten()
        rows = (is_place & (wanted >= 0)).nonzero().flatten()
        wanted = wanted[rows]
        hidden = batch.hidden[:, :-1].flatten(0, 1)[rows].to(self._dtype)
        targets = mixed_targets(hidden, self._head, wanted, self._soft)
        x = states.flatten(0, 1)[rows]
        weights = torch.full((len(rows),), 1.0 / max(1, len(rows)))
        loss, is_right = head_loss(x, self._head, targets, torch.arange(len(rows)), weights, wanted)
        return Losses(loss, [int(is_right.sum())], [int(is_place.sum())])

    def evaluate(self, batches: Iterable[tuple[Batch, list[str | None]]]) -> Measures:
        """Chains on greedy answers: a draft token counts where all before it in the chain were right."""
        return measure_batches(batches, self._accepted, EVAL_DEPTH)

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """A Llama-like model in bfloat16, without the target's tables; `draft/trained_model.py` reads it."""
        tensors = {
            PREFIX + name: value.detach().to(torch.bfloat16).contiguous()
            for name, value in self.module.named_parameters()
        }
        tensors["d2t"], _ = vocab_maps(self._vocab_ids, self._target.spec.vocab_size)
        spec = self.module.spec
        config = {
            "architectures": [FAMILIES[spec.family].saved_as],
            "model_type": spec.family,
            **layer_config(spec, spec.num_layers),
            "draft_vocab_size": len(self._vocab_ids),
            "foreword": dict(facts),
        }
        write_drafter(folder, tensors, config)

    def _states(self, batch: Batch) -> Tensor:
        """What the head reads at the answers' columns but the last, after which nothing is said (B, A - 1, H)."""
        embedded = F.embedding(batch.token_ids[:, :-1], self._embedding)
        return self.module(embedded, batch.answer_columns - 1, batch.starts)

    @staticmethod
    def _places(batch: Batch) -> Tensor:
        """Whether a column (B, A - 1) is followed by a token of its answer."""
        column = torch.arange(batch.num_columns - batch.answer_columns, batch.num_columns - 1)
        return column >= batch.answer_starts[:, None]

    def _accepted(self, batch: Batch) -> Tensor:
        """For each pair, how many draft tokens in a row are the answer's own (B, A - 1).

        A pair's first guess follows its second token, which decoding has from the target.
        """
        said = self._draft_ids[
            batch.token_ids[:, 1 - batch.answer_columns :]
        ]  # (B, A - 1): the token after each column
        rows = self._states(batch).to(self._dtype).flatten(0, 1)
        is_right = best_tokens(rows, self._head).view(said.shape) == said
        accepted = torch.zeros(said.shape, dtype=torch.int64)
        is_alive = torch.ones(said.shape, dtype=torch.bool)
        for depth in range(1, EVAL_DEPTH + 1):
            is_alive &= F.pad(is_right, (0, depth))[:, depth:]
            accepted += is_alive
        return accepted


def taps_for(spec: ModelSpec) -> tuple[int, ...]:
    """None are read; those of EAGLE-3 are kept, so that one folder of features serves both."""
    return eagle3_taps(spec)


def run_facts(settings: TrainSettings) -> RunFacts:
    """Another number of layers is another run."""
    told = {"soft_targets": settings.soft_targets, "num_speculative_tokens": NUM_NODES}
    return RunFacts({"num_layers": settings.num_layers}, told)


def check(target: TargetTables, settings: TrainSettings) -> None:
    """`ConfigError` where the target has too few layers, or no files."""
    num_layers = target.spec.num_layers
    if settings.num_layers >= num_layers:
        raise ConfigError(
            f"num_layers is {settings.num_layers}; allowed: 1 to {num_layers - 1}, fewer than the model's {num_layers}"
        )
    if target.weights is None:
        raise ConfigError("a draft model starts from the target's layers; load the target from its folder or file")


def make(target: TargetTables, store: FeatureStore, settings: TrainSettings, resume: Path) -> DraftModel:
    """One that has learnt nothing yet."""
    check(target, settings)
    assert target.weights is not None
    vocab_ids = drafted_vocab(target, store, settings, resume)
    net = DraftModelNet(target.spec, settings.num_layers)
    net.initialise(target.weights)
    fresh = DraftModel(net, target, vocab_ids, settings.soft_targets, settings.dtype)
    train = [entry for entry in store.entries if entry.split == "train" and entry.answer_len >= 2]
    if train:
        fresh.calibrate(collate(store, train[:_TRIAL_ANSWERS], settings.max_len))
    return fresh
