"""At temperature 0 every rule emits the tokens of plain decoding, lossy ones too; with match also when sampling from a drawn tree."""

import pytest

from foreword.sampling.params import SamplingParams
from foreword.verify.base import VERIFIERS, make_verifier
from tests.support.sampled_drafter import BlurredModel, SampledDrafter
from tests.support.scripted_drafters import SCRIPTS, ScriptedDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import GREEDY, PROMPTS, SAMPLED, TRUNCATED, make_engine, plain_tokens, run


@pytest.mark.parametrize("script", ["always-right-4", "right-until-2", "bursts", "bushy"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_greedy_tokens_are_those_of_plain_decoding(name, script):
    decoder, params = ToyDecoder(), SamplingParams(**GREEDY)
    known = {tuple(p): plain_tokens(decoder, p, params) for p in PROMPTS}
    drafter = ScriptedDrafter(script, SCRIPTS[script], known, 12)
    engine = make_engine(decoder, drafter, verifier=make_verifier(name), batch_size=3, num_nodes=48)
    for request, prompt in zip(run(engine, PROMPTS, [params] * len(PROMPTS)), PROMPTS, strict=True):
        assert request.new_ids == plain_tokens(decoder, prompt, params)


@pytest.mark.parametrize("widths", [(1, 1, 1), (3, 2, 1)], ids=str)
@pytest.mark.parametrize("options", [GREEDY, SAMPLED, TRUNCATED], ids=["greedy", "sampled", "truncated"])
def test_a_drawing_drafter_changes_no_token_of_matching(options, widths):
    decoder, params, rule = ToyDecoder(), SamplingParams(**options), make_verifier("match")
    drafter = SampledDrafter(BlurredModel(decoder, 0.6), widths, rule.draft_mode, 12)
    requests = run(make_engine(decoder, drafter, verifier=rule, num_nodes=16), PROMPTS[:2], [params] * 2)
    for request, prompt in zip(requests, PROMPTS, strict=False):
        assert request.new_ids == plain_tokens(decoder, prompt, params)
    assert sum(r.stats.accepted_tokens for r in requests) > 10


@pytest.mark.parametrize("options", [SAMPLED, TRUNCATED], ids=["sampled", "truncated"])
def test_shared_noise_makes_a_perfect_drafter_perfect(options):
    """The target as its own drafter draws the target's own tokens: everything is accepted."""
    decoder, params, rule = ToyDecoder(), SamplingParams(**{**options, "max_tokens": 41}), make_verifier("match")
    drafter = SampledDrafter(decoder, (1, 1, 1), rule.draft_mode, 12)
    (request,) = run(make_engine(decoder, drafter, verifier=rule, num_nodes=3), PROMPTS[:1], [params])
    assert request.stats.accepted_tokens == request.stats.drafted_tokens == 30


@pytest.mark.parametrize("name", ["rejection", "block"])
@pytest.mark.parametrize("options", [SAMPLED, TRUNCATED], ids=["sampled", "truncated"])
def test_a_draft_equal_to_the_target_is_always_accepted(name, options):
    """p = q: the ratio is 1 at every guess, truncated rows too."""
    decoder, params, rule = ToyDecoder(), SamplingParams(**{**options, "max_tokens": 41}), make_verifier(name)
    drafter = SampledDrafter(decoder, (1, 1, 1), rule.draft_mode, 12)
    (request,) = run(make_engine(decoder, drafter, verifier=rule, num_nodes=3), PROMPTS[:1], [params])
    assert request.stats.accepted_tokens == request.stats.drafted_tokens == 30
