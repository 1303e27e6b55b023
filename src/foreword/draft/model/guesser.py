"""From a draft pass to candidates: which tokens a drafter with logits of its own proposes after a node.

Under *match* a sampled request's guesses are drawn with the target's own noise: the k best of the draft's perturbed
scores, which are the target's draws wherever the two distributions agree. Greedy takes the k likeliest. Rules that
compare distributions get true samples and the rows they came from (`sampling.drafting`).

Where nothing shapes the request, little comes out of the pass: greedy its most probable tokens; sampled the draw itself
where one token is enough, else the `CANDIDATES` likeliest, among which the draw is made (what lies behind them is rarely
drawn, and then not guessed). A request that is shaped by its history gets its logits.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from foreword.draft.base import RequestView
from foreword.runtime.base import Need, PassOutput
from foreword.sampling.draft_sampling import DraftMode, DraftPlace, DraftVocab, draw_drafts, shape_draft
from foreword.sampling.sampler import Draw
from foreword.sampling.warp import NEVER, perturbed

logger = logging.getLogger(__name__)

NOT_NUMBERS = "the drafter's scores are not numbers (NaN): its weights are damaged; it drafts nothing"

CANDIDATES = 64  # most probable tokens among which several candidates are sampled


@dataclass(frozen=True)
class Spot:
    """A node of a draft pass after which candidates are needed."""

    request: RequestView
    node: int  # index in the packed batch of the drafter's pass
    path: Sequence[int]  # drafted tokens from the root to here, the root left out
    tree_node: int  # number, in the proposal, of the node that the candidates will follow

    @property
    def position(self) -> int:
        """Where the guessed tokens would stand."""
        return len(self.request.token_ids) + len(self.path)


@dataclass(frozen=True)
class Guesses:
    """Tokens after one spot, best first."""

    token_ids: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)  # probability that the target takes each
    row: Tensor | None = None  # the distribution they were drawn from, where the verifier wants it


class Guesser:
    """Requests and reads the outputs that candidates are made of.

    Args:
        vocab: the drafter's vocabulary in the target's ids.
        draft_size: rows of the drafter's head; those beyond the vocabulary are never proposed.
        mode: whose noise draws the guesses.
    """

    def __init__(self, vocab: DraftVocab, draft_size: int, mode: DraftMode = DraftMode.SHARED) -> None:
        self.vocab, self.mode = vocab, mode
        self._draft_size, self._has_spare_rows = draft_size, draft_size != len(vocab.ids)
        self._target_ids = None if vocab.is_identity else vocab.ids.tolist()  # of each row
        self.names = None if vocab.is_identity else vocab.ids.numpy()
        self._warned = False

    def need(self, spots: Sequence[Spot], k: int) -> Need:
        """What the pass must return for up to `k` candidates after each spot."""
        fused = [spot for spot in spots if self._is_fused(spot)]
        drawn = [spot for spot in fused if self._is_drawn_inside(spot, k)]
        chosen = sum(spot.request.sampler.warp.is_greedy for spot in fused)
        num_top = CANDIDATES if len(fused) > len(drawn) + chosen else k
        return Need(
            draws=[_draw(spot) for spot in drawn],
            names=self.names if drawn else None,
            logits=[spot.node for spot in spots if not self._is_fused(spot)],
            top_k=self.num_candidates(max(num_top, k)) if fused else 0,
            top_nodes=[spot.node for spot in fused],
        )

    def num_candidates(self, k: int) -> int:
        """How many tokens a pass can return where `k` are needed."""
        return min(k, self._draft_size)

    def chain_draws(self, request: RequestView, path: Sequence[int], depth: int) -> list[Draw]:
        """How the tokens after a drafted path are drawn, down to a depth; none where a pass cannot name them alone."""
        first = Spot(request, 0, path, 0)
        is_greedy = request.sampler.warp.is_greedy
        if not self._is_fused(first) or not (is_greedy or self._is_drawn_inside(first, 1)):
            return []
        positions = range(first.position, first.position + depth - len(path))
        return [Draw(0, request.sampler.warp, 0 if is_greedy else request.sampler.key(at)) for at in positions]

    def guesses(self, output: PassOutput, spots: Sequence[Spot], k: int) -> list[Guesses]:
        """The candidates of each spot, from the pass that `need` described."""
        top_ids = output.top_ids.tolist() if output.top_ids is not None else []
        found, num_top, num_draws, num_logits = [], 0, 0, 0
        for spot in spots:
            if not self._is_fused(spot):
                assert output.logits is not None, "logits were asked for"
                found.append(self._from_logits(output.logits[num_logits], spot, k))
                num_logits += 1
                continue
            assert output.top_logprobs is not None, "the likeliest were asked for"
            rows, log_probs = top_ids[num_top], output.top_logprobs[num_top]
            num_top += 1
            if self._is_drawn_inside(spot, k):
                found.append(self.checked(self._named([output.choices[num_draws]]), [math.exp(log_probs[0])]))
                num_draws += 1
            elif spot.request.sampler.warp.is_greedy:
                probs = [math.exp(p) for p in log_probs[:k].tolist()]
                found.append(self.checked(self._named(rows[:k]), probs))
            else:
                found.append(self._drawn(log_probs, self._named(rows), spot, k))
        return found

    def _is_fused(self, spot: Spot) -> bool:
        """Whether the pass names tokens; else its logits come out."""
        sampler = spot.request.sampler
        if self._has_spare_rows or sampler.processor is not None:
            return False
        return sampler.warp.is_greedy or self.mode is DraftMode.SHARED

    @staticmethod
    def _is_drawn_inside(spot: Spot, k: int) -> bool:
        return not spot.request.sampler.warp.is_greedy and k == 1

    def _named(self, rows: list[int]) -> list[int]:
        """The target's ids of rows of the head."""
        return rows if self._target_ids is None else [self._target_ids[row] for row in rows]

    def _from_logits(self, logits: Tensor, spot: Spot, k: int) -> Guesses:
        request, sampler = spot.request, spot.request.sampler
        logits = logits[: len(self.vocab.ids)]
        logits = shape_draft(logits, sampler, self.vocab, [*request.token_ids, *spot.path], request.prompt_len)
        best = float(logits.max())
        if best == NEVER or math.isnan(best):  # the request allows nothing that this vocabulary has; or damaged weights
            return self.checked([], [] if best == NEVER else [best])
        if self.mode is DraftMode.OWN and not sampler.warp.is_greedy:
            place = DraftPlace(spot.position, len(request.token_ids) - 1, spot.tree_node)
            drawn = draw_drafts(logits, sampler, k, place, self.mode, self.vocab)
            return Guesses(drawn.token_ids, drawn.probs, drawn.row)
        return self._drawn(logits, self.vocab.ids, spot, k)

    def _drawn(self, scores: Tensor, ids: list[int] | Tensor, spot: Spot, k: int) -> Guesses:
        """The k best of the scores of some tokens with the target's noise (greedy: without)."""
        sampler = spot.request.sampler
        ids = torch.as_tensor(ids, dtype=torch.int32, device=scores.device)
        noisy = perturbed(scores, sampler.warp, sampler.key(spot.position), ids)
        values, best = torch.topk(torch.softmax(noisy, dim=-1), min(k, len(ids)))
        return self.checked(ids[best].tolist(), values.tolist())

    def checked(self, token_ids: list[int], probs: list[float]) -> Guesses:
        """No candidates from logits that are not numbers: warn once."""
        if any(math.isnan(prob) for prob in probs):
            if not self._warned:
                logger.warning(NOT_NUMBERS)
                self._warned = True
            return Guesses()
        kept = [(token, prob) for token, prob in zip(token_ids, probs, strict=True) if prob > 0.0]
        return Guesses([token for token, _ in kept], [prob for _, prob in kept])


def _draw(spot: Spot) -> Draw:
    sampler = spot.request.sampler
    return Draw(spot.node, sampler.warp, sampler.key(spot.position))
