"""Training EAGLE-3: the training-time test, its loss, its measure, its files [eagle3]."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from foreword.train.methods.eagle3_net import Eagle3Net, Eagle3Spec, unroll
from foreword.train.methods.method import Losses, Measures, RunFacts, TargetTables
from foreword.train.out.layer_files import layer_config, write_drafter
from foreword.train.out.simulate import in_a_row, measure_batches

_DECAY = 0.8  # weight of a depth, of the one before


@dataclass(frozen=True, kw_only=True)
class Eagle3Options:
    """How the network is unrolled."""

    unroll: int = 4  # steps of the training-time test
    eval_depth: int = 6  # deepest draft token that is measured


class Eagle3:
    """Satisfies `Method`.

    Args:
        net: the network.
        target: whose embedding is read.
        vocab_ids: target ids of the draft vocabulary, ascending.
        options: see there.
        dtype: of the matrix products outside autocast: embedding, soft targets and head.
    """

    name = "eagle3"
    inner: tuple[str, ...] = ("fc.", "midlayer.")

    def __init__(
        self, net: Eagle3Net, target: TargetTables, vocab_ids: Tensor, options: Eagle3Options, dtype: torch.dtype
    ) -> None:
        self.module = net
        self.options, self._target, self._vocab_ids = options, target, vocab_ids
        self._dtype = dtype
        self._embedding = target.embedding.to(dtype)
        self._target_head = target.head[vocab_ids].to(dtype)
        self._draft_ids = draft_ids(vocab_ids, target.spec.vocab_size)

    @classmethod
    def build(
        cls,
        target: TargetTables,
        taps: tuple[int, ...],
        vocab_ids: Tensor,
        scale: Tensor,
        *,
        options: Eagle3Options,
        dtype: torch.dtype,
        seed: int,
    ) -> "Eagle3":
        """A fresh one. `scale` is the root mean square of each tapped value."""
        net = Eagle3Net(Eagle3Spec(target.spec, taps, len(vocab_ids)))
        net.initialise(target.head[vocab_ids].float(), scale, torch.Generator().manual_seed(seed))
        return cls(net, target, vocab_ids, options, dtype)

    def loss(self, batch: Batch) -> Losses:
        """Sum over depths of 0.8^depth times the mean cross-entropy, masked to answers and the draft vocabulary."""
        targets = soft_targets(batch.hidden.to(self._dtype).flatten(0, 1), self._target_head)
        wanted = self._draft_ids[batch.choices.clamp_min(0)].flatten()  # (B * A)
        states, judges, weights, counts = [], [], [], []
        for step, state in enumerate(self._unroll(batch, self.options.unroll)):
            is_place, judged = places(batch, step)
            rows = (is_place & (wanted[judged] >= 0)).flatten().nonzero().flatten()
            states.append(state.flatten(0, 1)[rows])
            judges.append(judged.flatten()[rows])
            weights.append(torch.full((len(rows),), _DECAY**step / max(1, len(rows))))
            counts.append(int(is_place.sum()))
        x, place = self.module.norm(torch.cat(states)), torch.cat(judges)
        loss, is_right = head_loss(x, self.module.lm_head.weight, targets, place, torch.cat(weights), wanted[place])
        rights = [int(part.sum()) for part in is_right.split([len(part) for part in judges])]
        return Losses(loss, rights, counts)

    def evaluate(self, batches: Iterable[tuple[Batch, list[str | None]]]) -> Measures:
        """Chains on greedy answers: a draft token counts where all before it in the chain were right."""
        return measure_batches(batches, self._accepted, self.options.eval_depth)

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """config.json and model.safetensors as vLLM and SGLang read them, bfloat16; the embedding is the target's."""
        state = {name: value.detach() for name, value in self.module.named_parameters()}
        state["fc.weight"] = state["fc.weight"] / self.module.feature_scale
        tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in state.items()}
        tensors["d2t"], tensors["t2d"] = vocab_maps(self._vocab_ids, self._target.spec.vocab_size)
        write_drafter(folder, tensors, self._config(facts))

    def _config(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        spec = self._target.spec
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **layer_config(spec, num_layers=1),
            "draft_vocab_size": len(self._vocab_ids),
        }
        config["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": list(self.module.spec.taps),
            "use_aux_hidden_state": True,
        }
        return config | {"foreword": dict(facts)}

    def _unroll(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        """The layer's output of each step for the answers' pairs (B, A - 1, H)."""
        # The last token begins no pair; a pair needs the token after.
        features = self.module.fuse(batch.taps[:, :-1])
        embedded = F.embedding(batch.token_ids, self._embedding)
        return unroll(self.module, features, embedded, batch, num_steps)

    def _accepted(self, batch: Batch) -> Tensor:
        """For each pair, how many draft tokens in a row are the answer's own (B, A - 1)."""
        said = self._draft_ids[batch.token_ids[:, batch.num_columns - batch.answer_columns :]]  # (B, A)
        head = self.module.lm_head.weight.to(self._dtype)
        states = self._unroll(batch, self.options.eval_depth)
        rows = (self.module.norm(state).to(self._dtype).flatten(0, 1) for state in states)
        return in_a_row(said, (best_tokens(row, head).view(len(said), -1) for row in rows))


def taps_for(spec: ModelSpec) -> tuple[int, ...]:
    """The residual streams that this method reads of a target."""
    return Eagle3Spec.default_taps(spec.num_layers)


def run_facts(settings: TrainSettings) -> RunFacts:
    """The unrolling may change when a run is resumed."""
    return RunFacts(told={"unroll": settings.unroll})


def make(target: TargetTables, store: FeatureStore, settings: TrainSettings, resume: Path) -> Eagle3:
    """A fresh one for some data."""
    train = [entry for entry in store.entries if entry.split == "train"]
    vocab_ids = drafted_vocab(target, store, settings, resume)
    return Eagle3.build(
        target,
        store.taps,
        vocab_ids,
        feature_scale(store, train),
        options=Eagle3Options(unroll=settings.unroll),
        dtype=settings.dtype,
        seed=settings.seed,
    )


def feature_scale(store: FeatureStore, entries: Sequence[Entry], most_answers: int = 256) -> Tensor:
    """Root mean square of each tapped value, over answers spread over the data."""
    chosen = entries[:: max(1, len(entries) // most_answers)][:most_answers]
    total, num_rows = torch.zeros(len(store.taps) * store.hidden_size), 0
    for entry in chosen:
        taps = store.rows(entry.start + entry.prompt_len - 1, entry.start + entry.length).taps.flatten(1).float()
        total += taps.square().sum(0)
        num_rows += len(taps)
    return (total / max(1, num_rows)).sqrt()
