"""From Medusa files and a target to heads that draft for it; every misfit is refused with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foreword.checkpoint.reading import reading
from foreword.config import ModelSpec
from foreword.draft.heads.medusa_files import MedusaFiles, finite
from foreword.draft.heads.medusa_heads import MedusaHeads
from foreword.draft.heads.medusa_tree import Paths, paths_of
from foreword.draft.model.draft_vocab import check_untrimmed
from foreword.errors import CheckpointError, ConfigError
from foreword.runtime.base import Runtime, WeightSource
from foreword.sampling.draft_sampling import DraftVocab


@dataclass(frozen=True, eq=False)
class MedusaNetwork:
    """Heads in memory, and what their card says about using them."""

    heads: MedusaHeads
    vocab: DraftVocab
    paths: Paths  # the tree, with the probability of each node
    settings: Mapping[str, Any]  # config.json's "foreword" object


def load_heads(
    files: MedusaFiles,
    target: ModelSpec,
    theirs: WeightSource | None,
    runtime: Runtime,
    draft_ids: Tensor | None = None,
) -> MedusaNetwork:
    """Build them beside a target.

    Args:
        files: the heads as stored.
        target: what the target is.
        theirs: the target's weights, for an output that the files leave out; None where they cannot be had.
        runtime: what the target runs on.
        draft_ids: the only tokens to draft, ascending; all unless given [frspec25].
    """
    with reading(files.path):
        return _build(files, target, theirs, runtime, draft_ids)


def _build(
    files: MedusaFiles, target: ModelSpec, theirs: WeightSource | None, runtime: Runtime, draft_ids: Tensor | None
) -> MedusaNetwork:
    check_fit(files, target)
    check_untrimmed(files.path, None if files.token_map is None else len(files.token_map), draft_ids)
    blocks = [
        [
            (
                finite(files.path, f"head {head}", layer.weight),
                None if layer.bias is None else finite(files.path, f"head {head}", layer.bias),
            )
            for layer in block
        ]
        for head, block in enumerate(files.blocks)
    ]
    outputs = [finite(files.path, f"output {i}", output) for i, output in enumerate(files.outputs)]
    if not outputs:
        if theirs is None:
            raise ConfigError(
                f"{files.path} leaves its outputs to the target's head, which a model held by transformers keeps to itself; "
                f"load the model from its folder instead"
            )
        outputs = [theirs.tensor("embed.weight" if target.tied_head else "head.weight").float()]
    ids = draft_ids if files.token_map is None else files.token_map.long()
    if draft_ids is not None:
        outputs = [output[draft_ids] for output in outputs]
    vocab = DraftVocab(target.vocab_size, target.vocab_size, ids)
    paths = tuple((path, chance) for path, chance in paths_of(files.card) if len(path) <= len(blocks))
    return MedusaNetwork(MedusaHeads(blocks, outputs, runtime), vocab, paths, files.card)


def check_fit(files: MedusaFiles, target: ModelSpec) -> None:
    """`CheckpointError` with the reason where these heads are not for this target."""
    hidden, vocab = target.hidden_size, target.vocab_size
    for head, block in enumerate(files.blocks):
        for layer in block:
            if tuple(layer.weight.shape) != (hidden, hidden) or (
                layer.bias is not None and tuple(layer.bias.shape) != (hidden,)
            ):
                raise CheckpointError(
                    f"{files.path}: head {head} has a layer of shape {list(layer.weight.shape)}; this target's hidden size "
                    f"is {hidden}; were the heads made for another model?"
                )
    said = files.config.get("vocab_size")
    if files.layout == "vllm" and isinstance(said, int) and said != vocab:
        raise CheckpointError(
            f"{files.path} is made for a vocabulary of {said} tokens; the target has {vocab}; "
            f"were the heads made for another model?"
        )
    rows = {len(output) for output in files.outputs} or {vocab}
    for head, output in enumerate(files.outputs):
        if output.ndim != 2 or output.shape[1] != hidden or len(rows) > 1:
            raise CheckpointError(
                f"{files.path}: the output of head {head} has shape {list(output.shape)}; allowed: all alike, with {hidden} "
                f"columns as this target's hidden size; were the heads made for another model?"
            )
    (num_rows,) = rows
    if files.token_map is None and num_rows != vocab:
        raise CheckpointError(
            f"{files.path}: the outputs have {num_rows} rows, the target {vocab} tokens, and no token_map says which tokens "
            f"the rows are; were the heads made for another model?"
        )
    if files.token_map is not None:
        _check_map(files, files.token_map, num_rows, vocab)


def _check_map(files: MedusaFiles, token_map: Tensor, num_rows: int, vocab_size: int) -> None:
    ids = token_map.long()
    problem = None
    if ids.ndim != 1 or torch.is_floating_point(token_map) or token_map.dtype == torch.bool:
        problem = f"is no list of token ids ({token_map.dtype}, shape {list(token_map.shape)})"
    elif len(ids) != num_rows:
        problem = f"has {len(ids)} entries, the outputs {num_rows} rows"
    elif int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        problem = f"names tokens outside the target's 0 to {vocab_size - 1}"
    elif len(torch.unique(ids)) != len(ids):
        problem = "names a token twice"
    if problem:
        raise CheckpointError(f"{files.path}: token_map {problem}; were the heads made for another model?")
