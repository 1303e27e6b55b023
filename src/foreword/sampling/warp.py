"""From logits to the distribution that a token is sampled from. The only place where temperature, top-k, top-p and min-p act.

Every truncation is a threshold on the scaled logits: a token stays if its score is at least the threshold. So ties stay
or go together, the result does not depend on any sort's order, and the distance of a score to the threshold tells how
near a token was to the border. Rows are worked one at a time, so that a row's bits cannot depend on how many share the
pass.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.errors import CheckpointError
from foreword.sampling.noise import MAX_NOISE, gumbel, gumbel_of, token_bits
from foreword.sampling.params import Warp

NEVER = float("-inf")
NO_TOKEN = -1  # returned where the largest of the scores is not a number
_NEAR_TOP_K = 12.0  # within this of the best score there are usually more than k tokens, but few
_NEAR_TOP_P = 8.0  # within this of the best score there is usually more than the mass p


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


def to_probs(
    logits: Float[Tensor, " vocab"], warp: Warp, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " vocab"]:
    """The distribution that a token is sampled from. The scores are float32; `dtype` is that of the softmax."""
    return torch.softmax(warp_scores(logits, warp).to(dtype), dim=-1)


def draw(logits: Float[Tensor, " vocab"], warp: Warp, key: int, names: Int[Tensor, " vocab"] | None = None) -> int:
    """The token sampled at one node: the argmax of `perturbed`; ties take the lowest id. `NO_TOKEN` where there is NaN.

    With `names` the logits are those of some tokens, which keep the noise that is theirs, and a place among them is drawn.

    Noise is computed only for tokens that can win: those that the warp keeps, or, if it keeps all, those that the
    largest noise there is could lift above the top-1 token with its own noise.
    """
    likeliest = argmax(logits)
    if warp.is_greedy or likeliest == NO_TOKEN:
        return likeliest
    scores = logits.float() / warp.temperature
    if warp.truncates:
        lowest = threshold(scores, warp)
    else:
        above = torch.tensor([likeliest], device=scores.device)
        lowest = float(_perturbed_at(scores, above, key, names)) - MAX_NOISE
    contenders = _ids_from(scores, lowest)
    return int(contenders[argmax(_perturbed_at(scores, contenders, key, names))])


def not_numbers() -> CheckpointError:
    """What a target is refused with whose scores are NaN: any token would be as good as any other."""
    return CheckpointError(
        "the model's scores are not numbers (NaN or infinite): its weights are damaged, or too large for this dtype; fetch "
        "it again, or try dtype float32"
    )


def argmax(row: Float[Tensor, " n"]) -> int:
    """The index of the largest value, the first of equals; `NO_TOKEN` where that is NaN or infinite."""
    # numpy takes a tenth of the time that torch takes; both take NaN for the largest
    best = int(row.float().numpy().argmax()) if row.device.type == "cpu" else int(row.argmax())
    return best if float(row[best]) < math.inf else NO_TOKEN


def perturbed(
    logits: Float[Tensor, " vocab"], warp: Warp, key: int, ids: Int[Tensor, " vocab"] | None = None
) -> Float[Tensor, " vocab"]:
    """Scores plus the noise of row `key` (no noise when greedy). `ids` (int32): whose scores they are, if not all."""
    if warp.is_greedy:
        return logits.float()
    noise = gumbel(key, logits.shape[-1], logits.device) if ids is None else gumbel_of(token_bits(key, ids))
    return warp_scores(logits, warp) + noise


def threshold(scores: Float[Tensor, " vocab"], warp: Warp) -> float:
    """The lowest score that stays; -inf when nothing is removed."""
    lowest, highest = NEVER, float(scores.max())
    if 0 < warp.top_k < scores.shape[-1]:
        near = scores[_ids_from(scores, highest - _NEAR_TOP_K)]
        lowest = float(torch.topk(near if len(near) >= warp.top_k else scores, warp.top_k).values[-1])
    if warp.top_p < 1.0:
        lowest = max(lowest, _top_p_threshold(scores, warp.top_p, lowest))
    if warp.min_p > 0.0:
        lowest = max(lowest, highest + math.log(warp.min_p))
    return lowest


def _top_p_threshold(scores: Float[Tensor, " vocab"], top_p: float, lowest: float) -> float:
    """The score of the last token of the smallest top set that holds `top_p` of the mass at or above `lowest`.

    Only tokens that can matter are sorted: those near the best score if they hold p; else all that weigh at least
    (1 - p) / V of the total, since V lighter ones hold less than 1 - p together.
    """
    if lowest > NEVER:
        scores = scores[_ids_from(scores, lowest)]
    highest = scores.max()
    total = float((scores - highest).exp_().sum(dtype=torch.float64))
    lightest = float(highest) + math.log(0.5 * (1.0 - top_p) * total / scores.shape[-1])  # half: room for rounding
    for lowest in (float(highest) - _NEAR_TOP_P, lightest):
        ordered = torch.sort(scores[_ids_from(scores, lowest)], descending=True).values
        mass = torch.cumsum(torch.exp((ordered - highest).double()), dim=0)
        last = int(torch.searchsorted(mass, top_p * total))
        if last < len(ordered):
            break
    return float(ordered[min(last, len(ordered) - 1)])


def _perturbed_at(
    scores: Float[Tensor, " vocab"], ids: Int[Tensor, " n"], key: int, names: Int[Tensor, " vocab"] | None
) -> Float[Tensor, " n"]:
    """Scores plus noise of some tokens: the same bits as those of the whole row."""
    return scores[ids] + gumbel_of(token_bits(key, (ids if names is None else names[ids]).to(torch.int32)))


def _ids_from(scores: Float[Tensor, " vocab"], lowest: float) -> Int[Tensor, " n"]:
    """Tokens whose score is at least `lowest`, ascending (NaN stays, to be seen)."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(~(scores.numpy() < lowest)))  # a quarter of the time that torch takes
    return (~(scores < lowest)).nonzero()[:, 0]
