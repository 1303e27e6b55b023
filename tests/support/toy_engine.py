"""An engine over a toy decoder, and plain decoding written out by hand as the independent oracle."""

import functools

from foreword.draft.draft_config import DraftConfig
from foreword.draft.none import NoDrafter
from foreword.engine.engine import Engine
from foreword.engine.fixed_policy import FixedController
from foreword.engine.request import Request
from foreword.engine.step import StepParts
from foreword.sampling.params import SamplingParams
from foreword.sampling.warp import draw
from foreword.target.target import Target
from foreword.verify.base import Matching

PROMPTS = [[1, 2, 3], [5, 4, 3, 2, 1, 5, 4, 3, 2], [7], [3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3], [0, 9, 9, 0, 9, 9, 0]]
GREEDY = {"max_tokens": 40}
SAMPLED = {"max_tokens": 40, "temperature": 0.8, "seed": 11}
TRUNCATED = {"max_tokens": 40, "temperature": 1.3, "top_k": 7, "top_p": 0.9, "min_p": 0.02, "seed": 5}


def plain_tokens(decoder, prompt, params: SamplingParams, stop_ids=()) -> list[int]:
    """One token at a time, straight from the model's definition: no engine, no cache, no tree."""
    return list(_plain_tokens(decoder, tuple(prompt), params, tuple(stop_ids)))


@functools.cache
def _plain_tokens(decoder, prompt: tuple, params: SamplingParams, stop_ids: tuple) -> list[int]:
    tokens, new = list(prompt), []
    sampler = Request(list(prompt), params, context_len=1 << 30).sampler
    limit = min(params.max_tokens, decoder.spec.context_len - len(prompt))
    while len(new) < limit:
        logits = decoder.logits_after(tokens, len(tokens) - 1)
        token = draw(logits, sampler.warp, sampler.key(len(tokens)))
        tokens.append(token)
        new.append(token)
        if token in stop_ids:
            break
    return new


def make_engine(
    decoder, drafter=None, *, num_nodes=16, batch_size=8, verifier=None, prefill_chunk=4, target=None, budget=None
) -> Engine:
    drafter = drafter or NoDrafter()
    parts = StepParts(
        FixedController(num_nodes, drafter.name, prefill_chunk),
        drafter,
        target or Target(decoder),
        verifier or Matching(),
    )
    return Engine(parts, batch_size, budget)


def run(engine: Engine, prompts, params_list, eos=()) -> list[Request]:
    context_len = engine.parts.target.spec.context_len
    requests = [
        Request(list(p), q, context_len=context_len, eos_token_ids=tuple(eos))
        for p, q in zip(prompts, params_list, strict=True)
    ]
    for request in requests:
        engine.add(request)
    for _ in range(100_000):
        if engine.step() is None:
            break
    for request in requests:
        if request.error is not None:
            raise request.error
    assert all(r.is_finished for r in requests)
    assert engine.parts.target.cache.num_open == 0, "a finished request left its cache region open"
    return requests


__all__ = ["GREEDY", "PROMPTS", "SAMPLED", "TRUNCATED", "DraftConfig", "make_engine", "plain_tokens", "run"]
