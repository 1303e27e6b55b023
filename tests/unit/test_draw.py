"""The fast draw against the plain definition, and the two forms of the noise against each other."""

import pytest
import torch

from foreword.sampling.noise import MAX_NOISE, _bits_of_tensor, gumbel, gumbel_of, token_bits
from foreword.sampling.params import Warp
from foreword.sampling.warp import NEVER, draw, perturbed, threshold

KEYS = (0, 1, 1 << 63, (1 << 64) - 1, 0x123456789ABCDEF0)
WARPS = {
    "temperature": Warp(0.8),
    "hot": Warp(5.0),
    "cold": Warp(0.01),
    "top_k": Warp(1.0, top_k=50),
    "top_k_1": Warp(1.0, top_k=1),
    "top_p": Warp(0.9, top_p=0.95),
    "top_p_wide": Warp(3.0, top_p=0.9999),
    "min_p": Warp(1.0, min_p=0.02),
    "all": Warp(1.2, top_k=200, top_p=0.9, min_p=0.001),
}
ROWS = {
    "spread like a language model": lambda g: torch.randn(5003, generator=g) * 4,
    "flat": lambda g: torch.randn(5003, generator=g) * 1e-3,
    "all equal": lambda g: torch.zeros(977),
    "coarse, with ties": lambda g: (torch.randn(5003, generator=g) * 3).round(),
    "bfloat16": lambda g: (torch.randn(5003, generator=g) * 4).bfloat16(),
    "one sure token": lambda g: torch.cat((torch.randn(500, generator=g), torch.tensor([60.0]))),
    "most tokens forbidden": lambda g: torch.where(torch.rand(5003, generator=g) < 0.99, NEVER, 0.0),
    "one token": lambda g: torch.zeros(1),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("warp", WARPS)
def test_a_draw_is_the_argmax_of_the_perturbed_row(row, warp):
    generator = torch.Generator().manual_seed(0)
    for key in range(20):
        logits = ROWS[row](generator)
        assert draw(logits, WARPS[warp], key) == int(perturbed(logits, WARPS[warp], key).argmax()), f"{key = }"


def test_an_unlikely_token_with_large_noise_is_drawn():
    """The token with the largest noise of a row, made to win by a hair against the likeliest, then to lose by one."""
    for key in range(30):
        noise = gumbel(key, 20_000)
        lucky = int(noise.argmax())
        likeliest = (lucky + 1) % 20_000
        gap = float(noise[lucky] - noise[likeliest])
        logits = torch.full((20_000,), -100.0)
        for margin, winner in ((1e-4, lucky), (-1e-4, likeliest)):
            logits[likeliest], logits[lucky] = 0.0, margin - gap
            assert draw(logits, Warp(1.0), key) == winner


def test_noise_of_a_few_tokens_has_the_bits_of_the_whole_row():
    generator = torch.Generator().manual_seed(0)
    for key in KEYS:
        whole = gumbel(key, 49_152)
        for size in (1, 7, 16, 33, 1000, 20_011):
            ids = torch.randperm(49_152, generator=generator)[:size]
            assert torch.equal(gumbel_of(token_bits(key, ids.to(torch.int32))), whole[ids])


def test_both_forms_of_the_mixer_give_the_same_bits():
    ids = torch.arange(200_000, dtype=torch.int32)
    before = ids.clone()
    for key in KEYS:
        assert torch.equal(token_bits(key, ids), _bits_of_tensor(key, ids))
    assert torch.equal(ids, before), "the ids were changed"


def test_the_mixer_still_gives_the_bits_it_always_gave():
    """Worked out with Python integers, so that no rewrite changes what a seed means."""
    mask = (1 << 32) - 1

    def mix(x):
        x = ((x ^ x >> 16) * 0x7FEB352D) & mask
        x = ((x ^ x >> 15) * 0x846CA68B) & mask
        return x ^ x >> 16

    ids = [0, 1, 2, 1000, 49_151, 151_935]
    for key in KEYS:
        expected = [mix(mix(token ^ key & mask) ^ key >> 32) >> 9 for token in ids]
        assert token_bits(key, torch.tensor(ids, dtype=torch.int32)).tolist() == expected


def test_no_noise_exceeds_the_bound_that_draws_rely_on():
    assert 16.63 < float(gumbel_of(torch.tensor([(1 << 23) - 1]))) < MAX_NOISE - 1e-3


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.95, 0.999, 1 - 1e-6])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 4.0, 30.0])
def test_the_top_p_threshold_is_that_of_a_full_sort(top_p, scale):
    scores = torch.randn(4001, generator=torch.Generator().manual_seed(1)) * scale
    ordered = scores.double().sort(descending=True).values
    mass = ordered.sub(ordered[0]).exp().cumsum(0)
    # the total is summed from float32 terms, 2^-24 relative each: the border may move by what that is worth
    low, high = (int(torch.searchsorted(mass, top_p * float(mass[-1]) * (1 + e))) for e in (-1e-6, 1e-6))
    allowed = ordered[low : min(high, 4000) + 1].tolist()
    assert threshold(scores, Warp(1.0, top_p=top_p)) in allowed
