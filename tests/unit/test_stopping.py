"""Where a request ends: inside an accepted run, at the last token, at the context's end."""

import pytest

from foreword.draft.lookup.ngram import NgramDrafter
from foreword.engine.request import Request, cut
from foreword.errors import ConfigError, PromptTooLongError
from foreword.sampling.params import SamplingParams
from tests.support.scripted_drafters import ScriptedDrafter, always_right
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, make_engine, plain_tokens, run


def test_cut():
    assert cut((1, 2, 3), 10, frozenset()) == (3, None)
    assert cut((1, 2, 3), 3, frozenset()) == (3, "length")
    assert cut((1, 2, 3), 2, frozenset()) == (2, "length")
    assert cut((1, 2, 3), 10, frozenset({2})) == (2, "stop")
    assert cut((1, 2, 3), 2, frozenset({2})) == (2, "stop")
    assert cut((1, 2, 3), 1, frozenset({2})) == (1, "length")
    assert cut((), 5, frozenset()) == (0, None)


def oracle(decoder, prompt, k, options):
    answer = plain_tokens(decoder, prompt, SamplingParams(**{**options, "max_tokens": 60}))
    return ScriptedDrafter("oracle", always_right(k), {tuple(prompt): answer}, decoder.spec.vocab_size)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 8, 16])
def test_any_token_declared_the_end_stops_right_there(k, options):
    """The sweep of [R18]: run, declare the token at each place to be the end, run again with every draft size."""
    decoder, prompt = ToyDecoder(vocab_size=40), PROMPTS[0]
    free = plain_tokens(decoder, prompt, SamplingParams(max_tokens=20, **options))
    for place, token in enumerate(free):
        first = free.index(token)
        for how in ({"eos": (token,)}, {"stop": (token,)}):
            params = SamplingParams(max_tokens=20, stop_token_ids=how.get("stop", ()), **options)
            engine = make_engine(decoder, oracle(decoder, prompt, k, options), num_nodes=k)
            (request,) = run(engine, [prompt], [params], eos=how.get("eos", ()))
            assert request.new_ids == free[: first + 1], f"{place = } {k = } {how = }"
            assert request.finish_reason == ("stop" if first < 19 or token in free[:20] else "length")
            assert request.stats.new_tokens == first + 1
            assert request.stats.accepted_tokens <= first


def test_ignore_eos_goes_on():
    decoder, prompt = ToyDecoder(), PROMPTS[0]
    free = plain_tokens(decoder, prompt, SamplingParams(max_tokens=20))
    (request,) = run(make_engine(decoder), [prompt], [SamplingParams(max_tokens=20, ignore_eos=True)], eos=tuple(free))
    assert request.new_ids == free
    assert request.finish_reason == "length"


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_max_tokens_is_exact(k):
    """The sweep of [R21], [R22]: every budget around the draft size, delivered tokens equal to the count reported."""
    decoder, prompt = ToyDecoder(), PROMPTS[0]
    for budget in sorted({0, 1, 2, 3, k, k + 1, k + 2, 2 * k + 1}):
        engine = make_engine(decoder, oracle(decoder, prompt, k, {}), num_nodes=k)
        (request,) = run(engine, [prompt], [SamplingParams(max_tokens=budget)])
        assert request.new_ids == plain_tokens(decoder, prompt, SamplingParams(max_tokens=budget))
        assert len(request.new_ids) == request.stats.new_tokens == budget
        assert request.finish_reason == "length"


@pytest.mark.parametrize("k", [0, 5])
def test_the_context_end_is_a_length_finish(k):
    """[R56]: context 64, prompt 60, ten tokens asked for: four come, no error."""
    decoder, prompt = ToyDecoder(context_len=64), [1, 2, 3] * 20
    engine = make_engine(decoder, NgramDrafter(), num_nodes=k)
    (request,) = run(engine, [prompt], [SamplingParams(max_tokens=10)])
    assert len(request.new_ids) == 4
    assert request.finish_reason == "length"
    assert request.new_ids == plain_tokens(decoder, prompt, SamplingParams(max_tokens=10))


def test_a_prompt_that_fills_the_context_is_refused_with_both_lengths():
    with pytest.raises(PromptTooLongError, match="64 tokens, but the model's context holds 64"):
        Request([1] * 64, SamplingParams(), context_len=64)
    assert Request([1] * 63, SamplingParams(), context_len=64).remaining == 1


def test_an_empty_prompt_is_refused():
    with pytest.raises(ConfigError, match="prompt is empty"):
        Request([], SamplingParams(), context_len=64)


def test_an_abandoned_request_frees_its_region():
    engine = make_engine(ToyDecoder(), batch_size=1)
    first, second = (Request(list(p), SamplingParams(max_tokens=9), context_len=4096) for p in PROMPTS[:2])
    engine.add(first)
    engine.add(second)
    engine.step()
    engine.abort(first)
    assert first.finish_reason == "abort"
    assert engine.parts.target.cache.num_open == 0
    while engine.step() is not None:
        pass
    assert second.new_ids == plain_tokens(ToyDecoder(), PROMPTS[1], SamplingParams(max_tokens=9))


def test_a_failing_pass_leaves_nothing_half_done():
    decoder = ToyDecoder()
    engine = make_engine(decoder)
    request = Request(list(PROMPTS[0]), SamplingParams(max_tokens=9), context_len=4096)
    engine.add(request)
    engine.step()
    original, decoder.forward = decoder.forward, lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no power"))
    with pytest.raises(RuntimeError, match="no power"):
        engine.step()
    decoder.forward = original
    assert request.finish_reason == "abort"
    assert engine.parts.target.cache.num_open == 0
    (again,) = run(engine, PROMPTS[:1], [SamplingParams(max_tokens=9)])
    assert again.new_ids == plain_tokens(decoder, PROMPTS[0], SamplingParams(max_tokens=9))
