"""How a drafter samples its draft tokens from its own logits.

All candidates after one node are sampled at once, without replacement: add Gumbel noise to the warped log-probabilities
and take the k largest, in decreasing order [kool19]. The choice of noise decides which verifiers can use them:

    SHARED   the target's own noise of that position. Where the two distributions agree, so do the draws: for *match*.
    OWN      noise of the drafter alone, of this step and node alone. The candidates are then a true sample of the draft
             distribution, independent of everything the verifier draws: what *rejection* and *block* need, together
             with the distribution itself (`DraftTree.draft_probs`).

Greedy requests use no noise: the k largest logits.

A drafter whose vocabulary is smaller than the target's (or padded beyond it) maps ids first, so that a token meets
the noise of its id in the target's vocabulary. A tree is built so:

    drawn = draw_drafts(logits, request.sampler, k, place, mode, vocab)
    for token in drawn.token_ids:                # in this order: siblings are numbered as they were drawn
        token_ids.append(token); parents.append(place.parent); draft_probs.append(drawn.row)

and stays whole: whether a node is there must not depend on its own token, nor on what was drawn beside or below it. A
chain may end after any token, a tree may be wider where the draft is unsure; a node that was drawn may not be dropped
(else `DraftTree.shape_is_fixed` is False, and only *match* takes the tree).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from foreword.errors import ConfigError
from foreword.sampling.noise import Stream, gumbel_of, token_bits
from foreword.sampling.sampler import Sampler
from foreword.sampling.warp import NEVER, warp_scores


class DraftMode(Enum):
    """Which noise the candidates are sampled with; a verifier states it (`Verifier.draft_mode`)."""

    SHARED = "the target's noise of the position"
    OWN = "the drafter's own noise of the step"


@dataclass(frozen=True)
class DraftPlace:
    """Where candidates are sampled."""

    position: int  # of the tokens being drawn, counted from the prompt's first token
    root_position: int  # of the last committed token: len(token_ids) - 1 of the request
    parent: int = 0  # node of the tree that the candidates follow; OWN noise differs from node to node


class DraftVocab:
    """A drafter's vocabulary in the target's ids.

    Args:
        target_size: size of the target's vocabulary.
        draft_size: size of the drafter's rows, where it may differ from the target's with equal ids (padding).
        id_map: the target's id of each row, for a reduced vocabulary.
    """

    def __init__(self, target_size: int, draft_size: int | None = None, id_map: Tensor | None = None) -> None:
        self.target_size = target_size
        size = min(target_size, target_size if draft_size is None else draft_size)
        self.is_identity = id_map is None
        self.ids = torch.arange(size, dtype=torch.int32) if id_map is None else id_map.to(torch.int32)
        outside = (self.ids < 0) | (self.ids >= target_size)
        if bool(outside.any()):
            raise ConfigError(f"id_map names token {int(self.ids[outside][0])}; allowed: 0 to {target_size - 1}")
        if len(torch.unique(self.ids)) != len(self.ids):
            raise ConfigError("id_map names a token twice; allowed: every target id at most once")

    def to_target(self, row: Tensor, filler: float) -> Tensor:
        """A drafter's row over the target's vocabulary; `filler` stands where the drafter has no token."""
        row = row[: len(self.ids)]
        if self.is_identity and len(self.ids) == self.target_size:
            return row
        full = row.new_full((self.target_size,), filler)
        return full.index_copy_(0, self.ids.to(row.device, torch.int64), row)


@dataclass(frozen=True)
class Drawn:
    """Candidates after one node, in the order in which they were sampled (highest perturbed score first)."""

    token_ids: list[int]  # in the target's vocabulary; fewer than asked for where the distribution holds fewer
    probs: list[float]  # of each under the warped draft distribution (greedy: under its plain softmax)
    row: Tensor | None  # OWN: that distribution over the target's vocabulary, float64; None when greedy or SHARED


def draw_drafts(
    logits: Tensor, sampler: Sampler, k: int, place: DraftPlace, mode: DraftMode, vocab: DraftVocab
) -> Drawn:
    """Sample up to `k` different candidates after one node.

    Args:
        logits: one row of the drafter, in its own vocabulary; after the request's logits processors, where it has any (`shape_draft`).
        sampler: the request's.
        k: most candidates.
        place: position, step and parent.
        mode: the verifier's `draft_mode`.
        vocab: the drafter's vocabulary.
    """
    logits = logits[: len(vocab.ids)].float()
    greedy = sampler.warp.is_greedy
    scores = logits if greedy else warp_scores(logits, sampler.warp)
    perturbed = scores if greedy else scores + _noise(sampler, place, mode, vocab).to(scores.device)
    rows = _largest(perturbed, k)
    probs = torch.softmax(scores.double(), dim=-1)
    return Drawn(
        token_ids=vocab.ids[rows].tolist(),
        probs=probs[rows].tolist(),
        row=vocab.to_target(probs, 0.0) if mode is DraftMode.OWN and not greedy else None,
    )


def shape_draft(
    logits: Tensor, sampler: Sampler, vocab: DraftVocab, token_ids: Sequence[int], prompt_len: int
) -> Tensor:
    """Draft logits after the request's logits processors (penalties, bias, grammar), following `token_ids`: prompt, answer, path.

    Raises agreement; leaving it out is never wrong.
    """
    if sampler.processor is None:
        return logits
    full = sampler.shape(vocab.to_target(logits.float(), NEVER), token_ids, prompt_len)
    return full[vocab.ids.to(full.device, torch.int64)]


def _noise(sampler: Sampler, place: DraftPlace, mode: DraftMode, vocab: DraftVocab) -> Tensor:
    """Gumbel noise of the drafter's tokens, by their ids in the target's vocabulary."""
    if mode is DraftMode.SHARED:
        key = sampler.key(place.position)
    else:
        key = sampler.step_key(Stream.DRAFT, place.root_position, place.parent)
    return gumbel_of(token_bits(key, vocab.ids))


def _largest(scores: Tensor, k: int) -> Tensor:
    """Rows of the k largest scores, best first; removed tokens (-inf) are left out."""
    if k == 1:
        return scores.argmax().reshape(1).cpu()
    values, rows = torch.topk(scores, min(k, len(scores)))
    return rows[values > NEVER].cpu()
