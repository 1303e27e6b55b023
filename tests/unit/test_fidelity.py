"""A near-tie is told from a fault."""

import pytest
import torch

from foreword.bench.fidelity import explain_difference, first_difference, logits_after, score_gap
from foreword.sampling.params import SamplingParams, Warp
from foreword.sampling.sampler import Sampler
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, plain_tokens

GREEDY = Sampler(Warp(), 0)


def test_first_difference():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([], []) is None


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 258, 600])
def test_the_rescored_logits_are_the_models(length):
    decoder = ToyDecoder()
    tokens = [(7 * i + i // 5) % 12 for i in range(length)]
    assert torch.equal(logits_after(decoder, tokens), decoder.logits_after(tokens, length - 1))


def test_a_structural_difference_is_a_fault():
    decoder, prompt = ToyDecoder(), PROMPTS[0]
    plain = plain_tokens(decoder, prompt, SamplingParams(max_tokens=20))
    logits = decoder.logits_after([*prompt, *plain[:7]], len(prompt) + 6)
    other = [*plain[:7], int(logits.argsort(descending=True)[1]), *plain[8:]]
    difference = explain_difference(decoder, prompt, plain, other, GREEDY, tolerance=1e-3)
    assert difference is not None
    assert difference.index == 7
    assert not difference.is_near_tie
    top = logits.sort(descending=True).values
    assert difference.gap == pytest.approx(float(top[0] - top[1]))
    assert explain_difference(decoder, prompt, plain, plain, GREEDY, 1e-3) is None


def test_stopping_early_is_never_a_near_tie():
    decoder, prompt = ToyDecoder(), PROMPTS[0]
    plain = plain_tokens(decoder, prompt, SamplingParams(max_tokens=20))
    difference = explain_difference(decoder, prompt, plain, plain[:5], GREEDY, tolerance=1e9)
    assert difference is not None
    assert (difference.index, difference.other_token, difference.is_near_tie) == (5, None, False)


def test_a_tie_is_a_near_tie():
    logits = torch.tensor([1.0, 5.0, 5.0 - 1e-4, 0.0])
    assert score_gap(logits, 1, 2, GREEDY, 3) == pytest.approx(1e-4, rel=0.05)
    sampler = Sampler(Warp(0.5), seed=1)
    from foreword.sampling.noise import gumbel

    noise = gumbel(sampler.key(9), 4)
    logits = torch.tensor([1.0, 5.0, float(5.0 + 0.5 * (noise[1] - noise[2])) - 1e-3, 0.0])
    assert score_gap(logits, 1, 2, sampler, 9) == pytest.approx(1e-3, rel=0.05)


def test_a_token_at_the_border_of_a_truncation():
    """Top-2 of three nearly equal logits: rounding decides which one falls; the distance to the border says so."""
    sampler = Sampler(Warp(1.0, top_k=2), seed=1)
    logits = torch.tensor([3.0, 2.0, 2.0 - 1e-4, 0.0])
    assert score_gap(logits, 1, 2, sampler, 5) == pytest.approx(1e-4, rel=0.05)
    assert score_gap(logits, 1, 3, sampler, 5) == pytest.approx(2.0, rel=0.05)
