"""Are the tokens the same? The gate before any speed figure.

Tokens are compared with those of drafter `none`. Where they differ, the text is read once more by the target, token by
token, and the difference is either a near-tie (the two candidates' perturbed scores, or a score and the border of a truncation, lie
closer than rounding can tell apart) or a fault. A structural gap is never excused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from foreword.runtime.base import Decoder, Need
from foreword.sampling.sampler import Sampler
from foreword.sampling.warp import NEVER, perturbed, threshold, warp_scores
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack

# How far rounding may move a logit when the width of a pass changes: measured on SmolLM2 (float32 2e-4, bfloat16 0.3 at most), with
# room. The native runtime has none.
LOGIT_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1, "int8": 0.0, "int4": 0.0}
_CHUNK = 256


@dataclass(frozen=True)
class Difference:
    """Where two token sequences part."""

    index: int  # in the answer, from 0
    plain_token: int | None  # None where the plain answer has ended
    other_token: int | None
    gap: float  # how much better the plain token's score is, in units of logits
    tolerance: float

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding explains it. Where nothing rounds, not even equal scores do: ties take the lowest id."""
        return self.tolerance > 0 and abs(self.gap) <= self.tolerance

    def __str__(self) -> str:
        kind = "a near-tie" if self.is_near_tie else "NOT a near-tie"
        return (
            f"token {self.index}: {self.plain_token} plainly, {self.other_token} here; "
            f"scores {self.gap:.2g} apart, tolerance {self.tolerance:.2g}: {kind}"
        )


def first_difference(plain_ids: Sequence[int], other_ids: Sequence[int]) -> int | None:
    """Index of the first token that differs, the shorter length if one is the other's start; None if they are equal."""
    for index, (a, b) in enumerate(zip(plain_ids, other_ids, strict=False)):
        if a != b:
            return index
    return None if len(plain_ids) == len(other_ids) else min(len(plain_ids), len(other_ids))


def explain_difference(
    decoder: Decoder,
    prompt_ids: Sequence[int],
    plain_ids: Sequence[int],
    other_ids: Sequence[int],
    sampler: Sampler,
    tolerance: float,
) -> Difference | None:
    """The first difference and its cause; None if there is none. `tolerance` is in units of logits."""
    index = first_difference(plain_ids, other_ids)
    if index is None:
        return None
    if index >= min(len(plain_ids), len(other_ids)):  # one stopped where the other went on: never rounding
        plain = plain_ids[index] if index < len(plain_ids) else None
        other = other_ids[index] if index < len(other_ids) else None
        return Difference(index, plain, other, float("inf"), tolerance)
    prefix = [*prompt_ids, *plain_ids[:index]]
    logits = sampler.shape(logits_after(decoder, prefix), prefix, len(prompt_ids))
    gap = score_gap(logits, plain_ids[index], other_ids[index], sampler, len(prefix))
    return Difference(index, plain_ids[index], other_ids[index], gap, tolerance)


def score_gap(
    logits: Float[Tensor, " vocab"], plain_token: int, other_token: int, sampler: Sampler, position: int
) -> float:
    """How much better the plain token's perturbed score is, in units of logits.

    Where one of them fell to a truncation, its distance to the border is what rounding had to move.
    """
    scale = 1.0 if sampler.warp.is_greedy else sampler.warp.temperature
    scores = perturbed(logits, sampler.warp, sampler.key(position))
    if min(float(scores[plain_token]), float(scores[other_token])) > NEVER:
        return float(scores[plain_token] - scores[other_token]) * scale
    raw = logits.float() / scale
    border = threshold(raw, sampler.warp)
    kept = warp_scores(logits, sampler.warp) > NEVER
    fallen = [t for t in (plain_token, other_token) if not kept[t]]
    return max(abs(float(raw[t]) - border) for t in fallen) * scale


def logits_after(decoder: Decoder, token_ids: Sequence[int]) -> Float[Tensor, " vocab"]:
    """The target's logits after `token_ids`: the last one read alone, as plain decoding does."""
    cache = decoder.new_cache()
    slot = cache.open(len(token_ids))
    try:
        ends = [*range(_CHUNK, len(token_ids) - 1, _CHUNK), len(token_ids) - 1, len(token_ids)]
        start, output = 0, None
        for end in ends:
            if end > start:
                batch = pack([DraftTree.chain(token_ids[start:end])], [start], [slot])
                output = decoder.forward(batch, cache, Need(logits=[end - start - 1]))
                cache.commit(slot, range(end - start))
                start = end
        assert output is not None
        assert output.logits is not None
        return output.logits[0].clone()
    finally:
        cache.close(slot)
