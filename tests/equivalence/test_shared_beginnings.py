"""Random requests with shared beginnings, several answers, aborts and little memory, on the real runtimes.

The oracle is the same model without a drafter, without reuse, one request at a time, with all the memory there is.
"""

import random
from dataclasses import replace

import pytest

from foreword.bench.fidelity import explain_difference
from foreword.engine.llm import LLM
from foreword.engine.request import Request
from foreword.runtime.select import native_problem
from foreword.sampling.params import SamplingParams
from tests.support.fuzz import TOLERANCE
from tests.support.tiny_llm import CONTEXT_LEN, VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("without_shape_checks")
NUM_ROUNDS = 12


@pytest.fixture(scope="module", params=["torch", "native"])
def runtime(request, files):
    if request.param == "native" and native_problem():
        pytest.skip("the native kernels are not built")
    return request.param, files.load(request.param)


def drafters(files):
    return [
        "none", "ngram", "suffix", "recycling", "lookahead", "layerskip", f"draft_model={files.draft}",
        f"eagle3={files.eagle3}", f"medusa={files.medusa}", f"suffix,draft_model={files.draft}",
    ]  # fmt: skip


def prompts_of(rng):
    stems = [[rng.randrange(VOCAB_SIZE) for _ in range(60)] for _ in range(3)]
    for _ in range(rng.randint(3, 8)):
        stem = rng.choice(stems)[: rng.choice((1, 15, 16, 17, 33, 60))]
        yield [*stem, *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 4)))]


def params_of(rng):
    return SamplingParams(
        max_tokens=rng.randint(1, 24), n=rng.choice((1, 1, 2, 4)), seed=rng.randrange(100), ignore_eos=True,
        temperature=rng.choice((0.0, 1.0)), logprobs=rng.choice((None, None, 1)),
        repetition_penalty=rng.choice((1.0, 1.0, 1.2)), prompt_logprobs=rng.choice((None,) * 5 + (0,)),
    )  # fmt: skip


@pytest.mark.parametrize("number", range(NUM_ROUNDS))
def test_tokens_are_those_of_fresh_plain_decoding(number, runtime, files, monkeypatch):
    name, model = runtime
    rng = random.Random(number)
    drafter = drafters(files)[number % len(drafters(files))]
    monkeypatch.setattr("foreword.engine.kv_memory.FIRST_ROWS", rng.choice((4, 512)))
    row_bytes = LLM(model, "none").engine.parts.target.cache.region_bytes(64) // 64
    rows = rng.choice((150, 280, 5000)) if name == "torch" else rng.choice((192, 320, 5000))
    llm = LLM(
        model, drafter, batch_size=rng.randint(1, 5), kv_cache_bytes=rows * row_bytes,
        policy=rng.choice(("fixed", "adaptive")),
    )  # fmt: skip
    engine, prompts = llm.engine, list(prompts_of(rng))
    given = [params_of(rng) for _ in prompts]
    requests = []
    for prompt, params in zip(prompts, given, strict=True):
        (prepared,) = llm._prepare([prompt], params, None)
        requests += [prepared.request(sample) for sample in range(params.n)]
    for request in requests:
        engine.add(request)
        if rng.random() < 0.3:
            engine.step()
        if rng.random() < 0.1:
            engine.abort(rng.choice(requests))
    while engine.step():
        assert model.decoder.spec.num_layers
    check_rows(engine, model)
    plain = LLM(model, "none", batch_size=1, prefix_cache=False).generate(prompts, given)
    for request, expected in zip(requests, plain, strict=True):
        compare(request, expected, model, exactly=name == "native")


def check_rows(engine, model):
    """Every region is accounted for, and holds the keys and values of its tokens."""
    cache, finished = engine.parts.target.cache, engine.memory.prefixes._idle
    assert cache.num_open == len(finished) == len(engine.memory.prefixes)
    assert not engine.memory._regions
    assert not engine.running
    assert not engine.waiting
    assert cache.num_bytes <= engine.memory.budget.total_bytes
    for region in finished:
        assert cache.length(region.slot) == region.num_held


def compare(request, expected, model, exactly):
    assert request.error is None
    ours, theirs = request.new_ids, expected.token_ids
    if request.finish_reason == "abort":
        theirs = theirs[: len(ours)]
    if ours == theirs:
        if exactly and request.params.logprobs is not None:
            assert request.logprobs == expected.logprobs[: len(ours)]
        if exactly and request.params.prompt_logprobs is not None and ours:
            assert request.prompt_logprobs == expected.prompt_logprobs
        return
    assert not exactly, (ours, theirs)
    sampler = Request(
        expected.prompt_token_ids,
        replace(request.params, seed=expected.seed),
        context_len=CONTEXT_LEN,
        sample_index=expected.sample_index,
    ).sampler
    found = explain_difference(model.decoder, expected.prompt_token_ids, theirs, ours, sampler, TOLERANCE)
    assert found is not None
    assert found.is_near_tie


def test_the_rounds_meet_copies_and_shortage(runtime, monkeypatch):
    """Else the rounds above would show nothing."""
    name, model = runtime
    monkeypatch.setattr("foreword.engine.kv_memory.FIRST_ROWS", 4)
    row_bytes = LLM(model, "none").engine.parts.target.cache.region_bytes(64) // 64
    llm = LLM(model, "ngram", batch_size=4, kv_cache_bytes=200 * row_bytes)
    stem = [(i * 5) % VOCAB_SIZE for i in range(40)]
    params = SamplingParams(max_tokens=40, n=3, seed=1, temperature=1.0, ignore_eos=True)
    results = llm.generate([[*stem, 1], [*stem, 2]], params)
    plain = LLM(model, "none", batch_size=1, prefix_cache=False).generate([[*stem, 1], [*stem, 2]], params)
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
    snapshot = llm.snapshot()
    assert llm.engine.memory.num_copied > 0
    assert snapshot.num_preempted > 0
    assert snapshot.cached_tokens >= 40
