"""From the heads' logits to candidates: which tokens each depth of the tree may hold, best first.

Greedy takes each head's most probable tokens. Under *match* a sampled request perturbs a head's scores with the target's own
noise of the position that the head speaks of. Verifiers that compare distributions get true samples, drawn without replacement
once a depth: all nodes of a depth offer the same candidates, and a walk comes by one node of each, so no draw is used twice.

A request that is shaped by its history is shaped by the most probable path, the only one that a head could know of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.base import RequestView
from foreword.sampling.draft_sampling import DraftMode, DraftPlace, DraftVocab, draw_drafts, shape_draft
from foreword.sampling.warp import NEVER, perturbed

NO_TOKEN = -1
_POOL = (
    64  # most probable tokens among which a sampled request's candidates are drawn: what lies behind is rarely drawn
)


@dataclass(frozen=True)
class Candidates:
    """Of one request."""

    token_ids: Int[np.ndarray, "depth k"]  # best first; NO_TOKEN where there are fewer
    rows: Sequence[Tensor | None]  # by depth: the distribution they were drawn from, where the verifier wants it


@final
class CandidateMaker:
    """Makes candidates.

    Args:
        vocab: the heads' vocabulary in the target's ids.
        mode: whose noise draws.
    """

    def __init__(self, vocab: DraftVocab, mode: DraftMode) -> None:
        self.vocab, self.mode = vocab, mode
        self._ids = None if vocab.is_identity else vocab.ids.numpy()

    def candidates(
        self, requests: list[RequestView], logits: Float[Tensor, "n depth vocab"], k: int
    ) -> list[Candidates]:
        """`k` candidates a depth for each request."""
        k = min(k, logits.shape[-1])
        plain = [self._is_plain(request) for request in requests]
        if not any(plain):
            return [self._one_by_one(request, own, k) for request, own in zip(requests, logits, strict=True)]
        is_drawn = any(p and not r.sampler.warp.is_greedy for r, p in zip(requests, plain, strict=True))
        values, ids = self._likeliest(logits, min(max(k, _POOL), logits.shape[-1]) if is_drawn else k)
        made, no_rows = [], [None] * logits.shape[1]
        for i, request in enumerate(requests):
            if not plain[i]:
                made.append(self._one_by_one(request, logits[i], k))
            elif request.sampler.warp.is_greedy:
                made.append(Candidates(ids[i, :, :k], no_rows))
            else:
                made.append(Candidates(self._perturbed(request, values[i], ids[i], k), no_rows))
        return made

    def _likeliest(
        self, logits: Float[Tensor, "n depth vocab"], k: int
    ) -> tuple[Float[Tensor, "n depth k"], Int[np.ndarray, "n depth k"]]:
        """The largest logits and the target's ids of their tokens, best first."""
        values, rows = torch.topk(logits, k)
        rows = rows.cpu().numpy()
        return values.cpu(), rows if self._ids is None else self._ids[rows]

    def _is_plain(self, request: RequestView) -> bool:
        """Whether its most probable tokens are all that is needed."""
        sampler = request.sampler
        return sampler.processor is None and (sampler.warp.is_greedy or self.mode is DraftMode.SHARED)

    def _perturbed(
        self, request: RequestView, values: Float[Tensor, "depth pool"], ids: Int[np.ndarray, "depth pool"], k: int
    ) -> Int[np.ndarray, "depth k"]:
        sampler, first = request.sampler, len(request.token_ids)
        chosen = np.full((len(ids), k), NO_TOKEN, dtype=np.int64)
        for depth, row in enumerate(ids):
            key = sampler.key(first + depth)
            scores = perturbed(values[depth], sampler.warp, key, torch.from_numpy(row.astype(np.int32))).numpy()
            best = np.argsort(-scores, kind="stable")[:k]
            best = best[scores[best] > NEVER]
            chosen[depth, : len(best)] = row[best]
        return chosen

    def _one_by_one(self, request: RequestView, logits: Float[Tensor, "depth vocab"], k: int) -> Candidates:
        """Depth after depth, each shaped by the most probable path to it."""
        sampler, text = request.sampler, list(request.token_ids)
        chosen = np.full((len(logits), k), NO_TOKEN, dtype=np.int64)
        rows: list[Tensor | None] = [None] * len(logits)
        root_position = len(text) - 1
        for depth, scores in enumerate(logits):
            row = shape_draft(scores[: len(self.vocab.ids)], sampler, self.vocab, text, request.prompt_len)
            best = float(row.max())
            if best == NEVER or best != best:  # nothing is allowed that this vocabulary has; or damaged weights
                break
            place = DraftPlace(root_position + 1 + depth, root_position, depth)
            drawn = draw_drafts(row, sampler, k, place, self.mode, self.vocab)
            chosen[depth, : len(drawn.token_ids)] = drawn.token_ids
            rows[depth] = drawn.row
            text.append(drawn.token_ids[0])
        return Candidates(chosen, rows)
