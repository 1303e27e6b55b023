"""From logits to what a token is drawn from. The only place where temperature, top-k, top-p and min-p act.

Every truncation is a threshold on the scaled logits: a token stays if its score is at least the threshold. So ties stay or
go together, the result does not depend on any sort's order, and the distance of a score to the threshold tells how near a
token was to the border. Rows are worked one at a time, so that a row's bits cannot depend on how many share the pass.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.sampling.noise import gumbel
from foreword.sampling.params import Warp

NEVER = float("-inf")


def warp_scores(logits: Float[Tensor, " vocab"], warp: Warp) -> Float[Tensor, " vocab"]:
    """Scores whose softmax is the distribution to draw from; removed tokens are -inf.

    Greedy gives 0 for the first of the largest logits and -inf elsewhere: a one-hot distribution.
    """
    logits = logits.float()
    if warp.is_greedy:
        return torch.full_like(logits, NEVER).index_fill_(0, logits.argmax(), 0.0)
    scores = logits / warp.temperature
    if not warp.truncates:
        return scores
    return scores.masked_fill(scores < threshold(scores, warp), NEVER)


def to_probs(logits: Float[Tensor, " vocab"], warp: Warp) -> Float[Tensor, " vocab"]:
    """The distribution a token is drawn from, float32."""
    return torch.softmax(warp_scores(logits, warp), dim=-1)


def draw(logits: Float[Tensor, " vocab"], warp: Warp, key: int) -> int:
    """The token drawn at one node: the argmax of the perturbed scores; ties take the lowest id."""
    if warp.is_greedy:
        return int(logits.argmax())
    return int(perturbed(logits, warp, key).argmax())


def perturbed(logits: Float[Tensor, " vocab"], warp: Warp, key: int) -> Float[Tensor, " vocab"]:
    """Scores plus the noise of row `key` (no noise when greedy)."""
    if warp.is_greedy:
        return logits.float()
    return warp_scores(logits, warp) + gumbel(key, logits.shape[-1], logits.device)


def threshold(scores: Float[Tensor, " vocab"], warp: Warp) -> float:
    """The lowest score that stays; -inf when nothing is removed."""
    lowest = NEVER
    if 0 < warp.top_k < scores.shape[-1]:
        lowest = float(torch.topk(scores, warp.top_k).values[-1])
    if warp.top_p < 1.0:
        lowest = max(lowest, _top_p_threshold(scores, warp.top_p, lowest))
    if warp.min_p > 0.0:
        lowest = max(lowest, float(scores.max()) + math.log(warp.min_p))
    return lowest


def _top_p_threshold(scores: Float[Tensor, " vocab"], top_p: float, lowest: float) -> float:
    """The score of the last token of the smallest top set that holds `top_p` of the mass at or above `lowest`.

    Only tokens that can matter are sorted: V tokens each lighter than (1 - p) / V of the total hold less than 1 - p
    together, so the set that holds p lies above them.
    """
    if lowest > NEVER:
        scores = scores[scores >= lowest]
    weights = torch.exp((scores - scores.max()).double())
    total = float(weights.sum())
    heavy = weights >= (1.0 - top_p) * total / scores.shape[-1]
    ordered = torch.sort(scores[heavy], descending=True).values
    mass = torch.cumsum(torch.exp((ordered - ordered[0]).double()), dim=0)
    last = int(torch.searchsorted(mass, torch.tensor(top_p * total, dtype=torch.float64, device=mass.device)))
    return float(ordered[min(last, len(ordered) - 1)])
