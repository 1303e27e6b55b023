"""Every difference between an answer and the plain one: after a near-tie the comparison continues."""

from collections.abc import Sequence
from dataclasses import replace

from foreword.bench.fidelity import LOGIT_TOLERANCE, Difference, explain_difference
from foreword.engine.llm import LLM
from foreword.engine.result import Result
from foreword.sampling.params import SamplingParams
from foreword.sampling.sampler import Sampler


def all_differences(plain: LLM, reference: Result, other: Result, params: SamplingParams) -> list[Difference]:
    """Every difference of an answer from the plain one, in order.

    A near-tie changes all that follows, so after one the rest is compared with what plain decoding says after the other
    token. A difference that is not a near-tie ends the list.
    """
    model, prompt_ids, other_ids = plain.model, reference.prompt_token_ids, other.token_ids
    sampler = Sampler(params.warp, reference.seed)
    tolerance = LOGIT_TOLERANCE[model.choice.dtype]
    found: list[Difference] = []
    start, expected = 0, reference.token_ids  # what plain decoding says after other_ids[:start]
    while True:
        prefix, rest = [*prompt_ids, *other_ids[:start]], other_ids[start:]
        difference = explain_difference(model.decoder, prefix, expected, rest, sampler, tolerance)
        if difference is None:
            return found
        found.append(replace(difference, index=start + difference.index))
        if not found[-1].is_near_tie:
            return found
        start = found[-1].index + 1
        expected = _continue_plainly(plain, [*prompt_ids, *other_ids[:start]], len(prompt_ids), reference.seed, params)


def _continue_plainly(
    plain: LLM, token_ids: list[int], prompt_len: int, seed: int, params: SamplingParams
) -> Sequence[int]:
    """What plain decoding says after a prompt and the beginning of an answer; nothing where the answer has ended."""
    checkpoint = plain.model.checkpoint
    remaining = params.max_tokens - (len(token_ids) - prompt_len)
    if not remaining or len(token_ids) >= checkpoint.spec.context_len or token_ids[-1] in checkpoint.eos_token_ids:
        return []
    (result,) = plain.generate([token_ids], replace(params, max_tokens=remaining, seed=seed))
    return result.token_ids
