"""Every way a draft can be right or wrong gives the tokens of plain decoding: the engine's core promise, exactly."""

import pytest

from foreword.draft.lookup.ngram import NgramDrafter
from foreword.sampling.params import SamplingParams
from tests.support.pairwise import pairwise
from tests.support.scripted_drafters import SCRIPTS, ScriptedDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import GREEDY, PROMPTS, SAMPLED, TRUNCATED, make_engine, plain_tokens, run

OPTIONS = {"greedy": GREEDY, "sampled": SAMPLED, "truncated": TRUNCATED}


def drafter_for(name: str, decoder: ToyDecoder, params: SamplingParams):
    answers = {tuple(p): plain_tokens(decoder, p, params) for p in PROMPTS}
    if name == "ngram":
        return NgramDrafter()
    return ScriptedDrafter(name, SCRIPTS[name], answers, decoder.spec.vocab_size)


@pytest.mark.parametrize(("name", "options", "batch_size"), pairwise([*SCRIPTS, "ngram"], OPTIONS, [1, 3]))
def test_speculative_tokens_are_those_of_plain_decoding(name, options, batch_size):
    decoder, params = ToyDecoder(), SamplingParams(**OPTIONS[options])
    engine = make_engine(decoder, drafter_for(name, decoder, params), batch_size=batch_size, num_nodes=48)
    for request in run(engine, PROMPTS, [params] * len(PROMPTS)):
        assert request.new_ids == plain_tokens(decoder, request.token_ids[: request.prompt_len], params)
        assert request.finish_reason == "length"


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 16])
def test_an_oracle_is_always_accepted(k):
    """Any slip in positions, commit or caches would break the run of k + 1 tokens per step."""
    decoder, params = ToyDecoder(), SamplingParams(max_tokens=1 + 5 * (k + 1))
    answers = {tuple(p): plain_tokens(decoder, p, SamplingParams(max_tokens=200)) for p in PROMPTS}
    drafter = ScriptedDrafter("oracle", lambda answer, step, vocab: answer[:k], answers, 12)
    (request,) = run(make_engine(decoder, drafter, num_nodes=k), PROMPTS[:1], [params])
    assert request.stats.num_steps == 5
    assert request.stats.tokens_per_step == k + 1
    assert request.stats.accept_rate_at_depth == [1.0] * k
    assert request.stats.accepted_tokens == request.stats.drafted_tokens == 5 * k


def test_counts_of_an_always_wrong_drafter():
    decoder, params = ToyDecoder(), SamplingParams(max_tokens=21)
    (request,) = run(make_engine(decoder, drafter_for("always-wrong-4", decoder, params)), PROMPTS[:1], [params])
    assert request.stats.num_steps == 20
    assert request.stats.accepted_tokens == 0
    assert request.stats.tokens_per_step == 1.0
    # 4 drafts a step until fewer than 5 tokens may still come: 3, 2, 1, 0 in the last steps
    assert request.stats.drafted_tokens == 16 * 4 + 3 + 2 + 1


def test_mixed_temperatures_share_a_batch():
    """Rows of different options in one pass: each is its solo run ([R11])."""
    decoder = ToyDecoder()
    options = [
        SamplingParams(**GREEDY),
        SamplingParams(**SAMPLED),
        SamplingParams(**TRUNCATED),
        SamplingParams(**GREEDY),
    ]
    requests = run(make_engine(decoder, NgramDrafter(), batch_size=4), PROMPTS[:4], options)
    for request, prompt, params in zip(requests, PROMPTS, options, strict=False):
        assert request.new_ids == plain_tokens(decoder, prompt, params)


def test_requests_admitted_at_any_time_are_their_solo_runs():
    decoder, params = ToyDecoder(), SamplingParams(**SAMPLED)
    engine = make_engine(decoder, NgramDrafter(), batch_size=2)
    from foreword.engine.request import Request

    requests = []
    for prompt in PROMPTS:
        requests.append(Request(list(prompt), params, context_len=4096))
        engine.add(requests[-1])
        engine.step()
        engine.step()
    while engine.step() is not None:
        pass
    for request, prompt in zip(requests, PROMPTS, strict=True):
        assert request.new_ids == plain_tokens(decoder, prompt, params)


def test_the_same_call_five_times_is_the_same_answer():
    """State that outlives a request would show here ([R16], [R31])."""
    decoder, params = ToyDecoder(), SamplingParams(**GREEDY)
    engine = make_engine(decoder, NgramDrafter())
    long_first = run(engine, [PROMPTS[3] * 20], [params])
    counts = set()
    for _ in range(5):
        (request,) = run(engine, PROMPTS[:1], [params])
        assert request.new_ids == plain_tokens(decoder, PROMPTS[0], params)
        counts.add((request.stats.drafted_tokens, request.stats.accepted_tokens))
    assert len(counts) == 1
    assert long_first[0].new_ids == plain_tokens(decoder, PROMPTS[3] * 20, params)


def test_seeds():
    decoder = ToyDecoder(sharpness=0.5)

    def answer(seed, batch_with=()):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=32)
        others = [SamplingParams(temperature=1.0, seed=99, max_tokens=32)] * len(batch_with)
        return run(make_engine(decoder), [PROMPTS[0], *batch_with], [params, *others])[0].new_ids

    assert answer(42) == answer(42) == answer(42, PROMPTS[1:4])
    assert answer(42) != answer(43)
    unseeded = [tuple(answer(None)) for _ in range(20)]
    assert len(set(unseeded)) == 20  # 12^32 answers: a repeat by chance is out of the question
    greedy = {tuple(run(make_engine(decoder), PROMPTS[:1], [SamplingParams(seed=s)])[0].new_ids) for s in (1, 2, None)}
    assert len(greedy) == 1
