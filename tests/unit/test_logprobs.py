"""Log-probabilities are those of the raw logits, the same with and without speculation, as many as there are tokens."""

import math

import numpy as np
import pytest
import torch

from foreword.engine.logprobs import token_logprob
from foreword.sampling.params import SamplingParams
from tests.support.option_oracle import plain_answer
from tests.support.scripted_drafters import SCRIPTS, ScriptedDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, make_engine, run

PROMPTS = PROMPTS[:3]
OPTIONS = {
    "greedy": {},
    "sampled": {"temperature": 0.7, "seed": 3},
    "shaped": {"temperature": 0.7, "seed": 3, "repetition_penalty": 1.4, "logit_bias": {3: 5.0}},
}
DECODER = ToyDecoder(sharpness=1.5)


def requests(options, drafter, batch_size=3, prefill_chunk=4, max_tokens=20, **more):
    params = SamplingParams(max_tokens=max_tokens, **options, **more)
    answers = {tuple(p): plain_answer(DECODER, p, params).token_ids for p in PROMPTS}
    script = ScriptedDrafter(drafter, SCRIPTS[drafter], answers, 12) if drafter else None
    engine = make_engine(DECODER, script, batch_size=batch_size, num_nodes=48, prefill_chunk=prefill_chunk)
    return run(engine, PROMPTS, [params] * len(PROMPTS))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("drafter", [None, "always-right-4", "right-until-2", "bursts", "bushy"])
def test_of_the_answer(options, drafter):
    """[R41], [R42]: against plain decoding's own rows, with and without temperature."""
    for request, prompt in zip(requests(OPTIONS[options], drafter, logprobs=3), PROMPTS, strict=True):
        plain = plain_answer(DECODER, prompt, SamplingParams(max_tokens=20, **OPTIONS[options]))
        assert [p.token_id for p in request.logprobs] == request.new_ids == plain.token_ids
        assert [p.logprob for p in request.logprobs] == pytest.approx(plain.logprobs, abs=1e-5)
        for entry, row in zip(request.logprobs, plain.rows, strict=True):
            assert [t for t, _ in entry.top] == np.argsort(-row, kind="stable")[:3].tolist()
            assert [p for _, p in entry.top] == pytest.approx(sorted(row, reverse=True)[:3], abs=1e-5)


@pytest.mark.parametrize("drafter", ["always-wrong-4", "bursts", "bushy"])
def test_speculation_does_not_change_a_bit(drafter):
    plain = requests(OPTIONS["sampled"], None, batch_size=1, logprobs=2, prompt_logprobs=2)
    drafted = requests(OPTIONS["sampled"], drafter, logprobs=2, prompt_logprobs=2)
    for a, b in zip(plain, drafted, strict=True):
        assert a.logprobs == b.logprobs
        assert a.prompt_logprobs == b.prompt_logprobs


@pytest.mark.parametrize("prefill_chunk", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("drafter", [None, "bushy"])
@pytest.mark.parametrize("max_tokens", [20, 0])
def test_of_the_prompt(prefill_chunk, drafter, max_tokens):
    """Chunk borders fall anywhere; every token but the first has one. Also where no token is asked for: to score a text."""
    options = {"max_tokens": max_tokens, "prefill_chunk": prefill_chunk, "prompt_logprobs": 1}
    for request, prompt in zip(requests({}, drafter, **options), PROMPTS, strict=True):
        assert request.logprobs == []
        assert len(request.new_ids) == max_tokens
        assert request.finish_reason == "length"
        assert request.prompt_logprobs[0] is None
        entries = request.prompt_logprobs[1:]
        assert [e.token_id for e in entries] == prompt[1:]
        for place, entry in enumerate(entries, start=1):
            row = torch.log_softmax(DECODER.logits_after(prompt[:place], place - 1).double(), -1)
            assert entry.logprob == pytest.approx(float(row[prompt[place]]), abs=1e-5)
            assert entry.top[0] == (int(row.argmax()), pytest.approx(float(row.max()), abs=1e-5))


def test_logprobs_end_with_the_tokens():
    """[R20]: a stop inside an accepted run cuts both."""
    free = plain_answer(DECODER, PROMPTS[0], SamplingParams(max_tokens=20)).token_ids
    script = ScriptedDrafter("right", SCRIPTS["always-right-16"], {tuple(PROMPTS[0]): free}, 12)
    params = SamplingParams(max_tokens=20, stop_token_ids=(free[6],), logprobs=0)
    (request,) = run(make_engine(DECODER, script, num_nodes=16), PROMPTS[:1], [params])
    assert request.finish_reason == "stop"
    assert len(request.logprobs) == len(request.new_ids) == free.index(free[6]) + 1
    assert all(entry.top == () for entry in request.logprobs)


def test_of_equals_the_lowest_id_comes_first():
    row = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 0.0])
    entry = token_logprob(row, 5, 4)
    assert [t for t, _ in entry.top] == [1, 3, 0, 2]
    assert entry.logprob == pytest.approx(-math.log(2 * math.e**2 + 3 * math.e + 1))
    assert len(token_logprob(row, 0, 6).top) == 6


def test_requests_without_logprobs_ask_for_no_logits():
    """They keep the fused draw even beside one that wants logprobs."""
    wanted = []

    class Watching(ToyDecoder):
        def forward(self, batch, cache, need, inputs=None):
            wanted.append((len(need.draws), len(need.logits)))
            return super().forward(batch, cache, need, inputs)

    engine = make_engine(Watching(), batch_size=2)
    run(engine, PROMPTS[:2], [SamplingParams(max_tokens=8), SamplingParams(max_tokens=8, logprobs=1)])
    assert max(logits for _, logits in wanted) == 1
    assert max(draws for draws, _ in wanted) == 2
