"""Training Medusa's heads on a frozen target: loss, measure, calibrated tree, files [medusa24].

Head k learns what the target says of token t + 2 + k from the target's hidden state at token t alone: cross-entropy with
weight 0.8^k (Medusa-1), against the target's own distribution there, its top-1 token, or a mix of both.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.nn import functional as F

from foreword.config import ModelSpec
from foreword.files import whole_file, write_whole
from foreword.train.data.batches import Batch, places
from foreword.train.data.features import FeatureStore
from foreword.train.data.vocabulary import draft_ids, drafted_vocab
from foreword.train.loop.losses import head_loss, mixed_targets
from foreword.train.loop.settings import TrainSettings
from foreword.train.methods.eagle3 import taps_for as eagle3_taps
from foreword.train.methods.medusa_net import MedusaNet, MedusaSpec
from foreword.train.methods.method import Losses, Measures, RunFacts, TargetTables
from foreword.train.out.calibrate import Calibration, calibrate
from foreword.train.out.simulate import Chains, measure

TREE_NODES = 64  # of the calibrated tree; smaller ones are its most probable nodes
NUM_RANKS = 10  # candidates a head may offer
_DECAY = 0.8  # weight of a head, of the one before
_CHUNK_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class MedusaOptions:
    """What the heads are and learn from."""

    num_heads: int = 4
    num_layers: int = 1  # residual layers per head
    shares_output: bool = True
    soft: float = 0.5  # weight of the target's distribution; the rest is that of its top-1 token


class Medusa:
    """Satisfies `Method`.

    Args:
        net: the heads.
        target: whose hidden states they read.
        vocab_ids: target ids of the draft vocabulary, ascending.
        options: see there.
        dtype: of the matrix products outside autocast.
    """

    name = "medusa"
    inner: tuple[str, ...] = ()

    def __init__(
        self, net: MedusaNet, target: TargetTables, vocab_ids: Tensor, options: MedusaOptions, dtype: torch.dtype
    ) -> None:
        self.module = net
        self.options, self._target, self._vocab_ids, self._dtype = options, target, vocab_ids, dtype
        self._target_head = target.head[vocab_ids].to(dtype)
        self._draft_ids = draft_ids(vocab_ids, target.spec.vocab_size)
        self._calibration: Calibration | None = None

    @classmethod
    def build(cls, target: TargetTables, vocab_ids: Tensor, *, options: MedusaOptions, dtype: torch.dtype) -> "Medusa":
        """Fresh heads: each begins with the target's own logits."""
        spec = MedusaSpec(
            target.spec.hidden_size, len(vocab_ids), options.num_heads, options.num_layers, options.shares_output
        )
        net = MedusaNet(spec)
        net.initialise(target.head[vocab_ids].float())
        return cls(net, target, vocab_ids, options, dtype)

    def loss(self, batch: Batch) -> Losses:
        """Sum over heads of 0.8^k times the mean cross-entropy, masked to answers and the draft vocabulary."""
        wanted = self._draft_ids[batch.choices.clamp_min(0)].flatten()  # (B * A)
        judging = batch.hidden.detach().to(self._dtype).flatten(0, 1)
        targets = mixed_targets(judging, self._target_head, wanted, self.options.soft)
        hidden = batch.hidden[:, :-1].flatten(0, 1)  # (B * (A - 1), H): the last token drafts nothing
        states, judges, weights, counts = [], [], [], []
        for head in range(self.options.num_heads):
            is_place, judged = places(batch, head)
            rows = (is_place & (wanted[judged] >= 0)).flatten().nonzero().flatten()
            states.append(self.module.states(hidden[rows], head))
            judges.append(judged.flatten()[rows])
            weights.append(torch.full((len(rows),), _DECAY**head / max(1, len(rows))))
            counts.append(int(is_place.sum()))
        if self.options.shares_output:  # one product for all heads
            joined = torch.cat(states), torch.cat(judges), torch.cat(weights)
            loss, is_right = self._head_loss(0, *joined, targets, wanted)
            parts = is_right.split([len(part) for part in judges])
        else:
            found = [
                self._head_loss(head, *part, targets, wanted)
                for head, part in enumerate(zip(states, judges, weights, strict=True))
            ]
            loss, parts = torch.stack([loss for loss, _ in found]).sum(), [is_right for _, is_right in found]
        return Losses(loss, [int(part.sum()) for part in parts], counts)

    def evaluate(self, batches: Iterable[tuple[Batch, list[str | None]]]) -> Measures:
        """Chains of guesses on greedy answers; the tree is calibrated by the way."""
        chains: list[Chains] = []
        rows: list[np.ndarray] = []
        by_category: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        num_heads = self.options.num_heads
        with torch.no_grad():
            for batch, categories in batches:
                ranks = self._ranks(batch).numpy()  # (B, A - 1, heads)
                first = batch.num_columns - batch.answer_columns
                for i, category in enumerate(categories):
                    own = ranks[i, int(batch.answer_starts[i]) - first : -1]
                    if not len(own):
                        continue
                    accepted = np.cumprod(own == 0, axis=1).sum(axis=1)
                    chains.append(accepted.tolist())
                    rows.append(own[: max(0, len(own) - num_heads + 1)])  # places that all heads can be judged at
                    by_category[category or "none"][0] += int((accepted > 0).sum())
                    by_category[category or "none"][1] += len(own)
        found = np.concatenate(rows) if rows else np.zeros((0, num_heads), dtype=np.int64)
        self._calibration = calibrate(found, NUM_RANKS, TREE_NODES)
        shares = {name: right / num for name, (right, num) in sorted(by_category.items())}
        return measure(chains, num_heads, shares)

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """config.json and model.safetensors as vLLM reads Medusa heads, bfloat16; the tree is that of `evaluate`."""
        tensors = {n: value.detach().to(torch.bfloat16).contiguous() for n, value in self.module.named_parameters()}
        tensors["token_map"] = self._vocab_ids.long()
        with whole_file(folder / "model.safetensors") as file:
            file.write(to_bytes(tensors, metadata={"format": "pt"}))
        write_whole(folder / "config.json", json.dumps(self._config(facts), indent=2) + "\n")

    def _config(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        spec, told = self.module.spec, dict(facts)
        if self._calibration is not None:
            tree = self._calibration.tree
            told["choices"] = [list(path) for path in tree]
            told["choice_probs"] = [round(chance, 5) for chance in tree.values()]
            told["accuracies"] = [[round(share, 4) for share in row] for row in self._calibration.accuracies]
            told["calibration_places"] = self._calibration.num_places
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": spec.hidden_size,
            "vocab_size": self._target.spec.vocab_size,
            "truncated_vocab_size": spec.draft_vocab_size,
            "num_heads": spec.num_heads,
            "num_hidden_layers": spec.num_layers,
            "max_paths": TREE_NODES,
            "topk": NUM_RANKS,
            "medusa_fc_bias": True,
            "original_lm_head": spec.shares_output,  # one output matrix for all heads
            "torch_dtype": "bfloat16",
            "foreword": told,
        }

    def _head_loss(
        self, head: int, states: Tensor, judges: Tensor, weights: Tensor, targets: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        return head_loss(states, self.module.output(head), targets, judges, weights, wanted[judges])

    def _ranks(self, batch: Batch) -> Tensor:
        """For each pair and head, how many tokens are likelier than the answer's own (B, A - 1, heads); at most NUM_RANKS."""
        first, num_pairs = batch.num_columns - batch.answer_columns, batch.answer_columns - 1
        said = self._draft_ids[batch.token_ids[:, first:]]  # (B, A)
        hidden = batch.hidden[:, :-1].flatten(0, 1)
        ranks = []
        for head in range(self.options.num_heads):
            wanted = F.pad(said, (0, head + 1), value=-1)[:, head + 2 :][:, :num_pairs].flatten()
            states, output = self.module.states(hidden, head).to(self._dtype), self.module.output(head).to(self._dtype)
            parts = []
            for start in range(0, len(states), _CHUNK_ROWS):
                logits = states[start : start + _CHUNK_ROWS] @ output.T
                own = wanted[start : start + _CHUNK_ROWS, None]
                above = (logits > logits.gather(1, own.clamp_min(0))).sum(-1)
                parts.append(torch.where(own[:, 0] >= 0, above.clamp_max(NUM_RANKS), NUM_RANKS))
            ranks.append(torch.cat(parts).view(len(said), num_pairs))
        return torch.stack(ranks, dim=-1)


def taps_for(spec: ModelSpec) -> tuple[int, ...]:
    """None are read; those of EAGLE-3 are kept, so that one folder of features serves both."""
    return eagle3_taps(spec)


def run_facts(settings: TrainSettings) -> RunFacts:
    """Heads of other sizes are another run."""
    sizes = {
        "num_heads": settings.num_heads,
        "head_layers": settings.head_layers,
        "share_output": settings.share_output,
    }
    return RunFacts(sizes, {"soft_targets": settings.soft_targets})


def make(target: TargetTables, store: FeatureStore, settings: TrainSettings, resume: Path) -> Medusa:
    """A fresh one for some data. The draft vocabulary is counted once and kept in `resume`."""
    vocab_ids = drafted_vocab(target, store, settings, resume)
    options = MedusaOptions(
        num_heads=settings.num_heads,
        num_layers=settings.head_layers,
        shares_output=settings.share_output,
        soft=settings.soft_targets,
    )
    return Medusa.build(target, vocab_ids, options=options, dtype=settings.dtype)
