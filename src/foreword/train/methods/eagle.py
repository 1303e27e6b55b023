"""Training EAGLE-1 [eagle24], whose files serve `eagle` and `eagle2`.

The loss is the smooth L1 distance of guessed and true features, and a tenth of the cross-entropy of the tokens they
stand for. Features are disturbed a little, since drafting will stand on guesses. Distances and noise are counted in
units of the features' root mean square, so that a target's scale does not matter. Fc begins as the linear map that
guesses the next feature best. The head is the target's rows of the
draft vocabulary [frspec25]: they are left out of the file, which holds only their names.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from foreword.config import ModelSpec
from foreword.train.data.batches import Batch, places
from foreword.train.data.features import Entry, FeatureStore
from foreword.train.data.vocabulary import draft_ids, drafted_vocab, vocab_maps
from foreword.train.loop.losses import best_tokens, head_loss, soft_targets
from foreword.train.loop.settings import TrainSettings
from foreword.train.methods.eagle3 import taps_for as eagle3_taps
from foreword.train.methods.eagle3_net import unroll
from foreword.train.methods.eagle_net import EagleNet
from foreword.train.methods.linear_fit import fit_next_feature
from foreword.train.methods.method import Losses, Measures, RunFacts, TargetTables
from foreword.train.out.layer_files import layer_config, write_drafter
from foreword.train.out.simulate import in_a_row, measure_batches

NOISE = 0.1  # most that a feature is disturbed by
EVAL_DEPTH = 6  # deepest draft token that is measured


class Eagle:
    """Satisfies `Method`.

    Args:
        net: the network.
        target: whose embedding and head it stands between.
        vocab_ids: target ids of the draft vocabulary, ascending.
        token_weight: of the tokens' loss, beside the features'.
        dtype: of the matrix products outside autocast.
        seed: of the noise.
    """

    name = "eagle"
    inner: tuple[str, ...] = ("fc.weight", "layers.")

    def __init__(
        self,
        net: EagleNet,
        target: TargetTables,
        vocab_ids: Tensor,
        *,
        token_weight: float,
        dtype: torch.dtype,
        seed: int,
        noise: float = NOISE,
    ) -> None:
        self.module = net
        self._target, self._vocab_ids, self._token_weight = target, vocab_ids, token_weight
        self._dtype, self._seed, self._noise = dtype, seed, noise
        self._embedding = target.embedding.to(dtype)
        self._head = target.head[vocab_ids].to(dtype)
        self._draft_ids = draft_ids(vocab_ids, target.spec.vocab_size)

    def loss(self, batch: Batch) -> Losses:
        """Features at all pairs of the answers, tokens where the target's choice is one that is drafted."""
        scale = self.module.feature_scale
        wanted = self._draft_ids[batch.choices.clamp_min(0)].flatten()  # (B * A)
        is_place, judged = places(batch, 0)
        guessed = next(self._unroll(batch, 1, self._disturbed(batch)))
        rows = is_place.flatten().nonzero().flatten()
        judged, x = judged.flatten()[rows], guessed.flatten(0, 1)[rows]
        true = batch.hidden.flatten(0, 1)[judged]
        distance = F.smooth_l1_loss(x.float() / scale, true.float() / scale)
        drafted = (wanted[judged] >= 0).nonzero().flatten()
        place = judged[drafted]
        targets = soft_targets(true[drafted].to(self._dtype), self._head)
        weights = torch.full((len(drafted),), 1.0 / max(1, len(drafted)))
        tokens, is_right = head_loss(
            x[drafted], self._head, targets, torch.arange(len(drafted)), weights, wanted[place]
        )
        return Losses(distance + self._token_weight * tokens, [int(is_right.sum())], [len(rows)])

    def evaluate(self, batches: Iterable[tuple[Batch, list[str | None]]]) -> Measures:
        """Chains on greedy answers: a draft token counts where all before it in the chain were right."""
        return measure_batches(batches, self._accepted, EVAL_DEPTH)

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """config.json and model.safetensors in the authors' layout, bfloat16, and the names of the head's rows."""
        tensors = {n: value.detach().to(torch.bfloat16).contiguous() for n, value in self.module.named_parameters()}
        tensors["d2t"], tensors["t2d"] = vocab_maps(self._vocab_ids, self._target.spec.vocab_size)
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **layer_config(self._target.spec, num_layers=1),
            "draft_vocab_size": len(self._vocab_ids),
            "bias": True,
            "foreword": dict(facts),
        }
        write_drafter(folder, tensors, config)

    def _disturbed(self, batch: Batch) -> Tensor:
        """The features with noise that the batch alone decides: a run that was broken off sees the same."""
        features = _features(batch)
        seed = zlib.crc32(batch.token_ids.numpy().tobytes(), self._seed)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(features.shape, generator=generator) - 0.5
        return features + 2 * self._noise * self.module.feature_scale * noise

    def _unroll(self, batch: Batch, num_steps: int, features: Tensor) -> Iterator[Tensor]:
        """Guessed features of each step for the answers' pairs (B, A - 1, H)."""
        embedded = F.embedding(batch.token_ids, self._embedding)
        return unroll(self.module, features[:, :-1], embedded, batch, num_steps)

    def _accepted(self, batch: Batch) -> Tensor:
        """For each pair, how many draft tokens in a row are the answer's own (B, A - 1)."""
        said = self._draft_ids[batch.token_ids[:, batch.num_columns - batch.answer_columns :]]  # (B, A)
        states = self._unroll(batch, EVAL_DEPTH, _features(batch))
        rows = (state.to(self._dtype).flatten(0, 1) for state in states)
        return in_a_row(said, (best_tokens(row, self._head).view(len(said), -1) for row in rows))


def _features(batch: Batch) -> Tensor:
    assert batch.features is not None, "batches of a feature store have the features of prompts too"
    return batch.features.float()


def taps_for(spec: ModelSpec) -> tuple[int, ...]:
    """None are read; those of EAGLE-3 are kept, so that one folder of features serves both."""
    return eagle3_taps(spec)


def run_facts(settings: TrainSettings) -> RunFacts:
    """The loss may be weighed otherwise when a run is resumed."""
    return RunFacts(told={"token_weight": settings.token_weight})


def make(target: TargetTables, store: FeatureStore, settings: TrainSettings, resume: Path) -> Eagle:
    """A fresh one for some data."""
    train = [entry for entry in store.entries if entry.split == "train"]
    vocab_ids = drafted_vocab(target, store, settings, resume)
    net = EagleNet(target.spec)
    weight, bias = fit_next_feature(store, train, target.embedding)
    net.initialise(weight, bias, feature_scale(store, train), torch.Generator().manual_seed(settings.seed))
    return Eagle(net, target, vocab_ids, token_weight=settings.token_weight, dtype=settings.dtype, seed=settings.seed)


def feature_scale(store: FeatureStore, entries: Sequence[Entry], most_answers: int = 256) -> Tensor:
    """Root mean square of the final norm's output, over answers spread over the data."""
    chosen = entries[:: max(1, len(entries) // most_answers)][:most_answers]
    sums = [
        store.rows(e.start + e.prompt_len - 1, e.start + e.length).hidden.float().square().mean().item() for e in chosen
    ]
    return torch.tensor(max(1e-12, sum(sums) / max(1, len(sums)))).sqrt()
