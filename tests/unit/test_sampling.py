"""The warp, the noise and the options."""

import math

import numpy as np
import pytest
import torch

from foreword.errors import ConfigError
from foreword.sampling.noise import Stream, gumbel, row_key, token_bits, uniform
from foreword.sampling.params import SamplingParams, Warp
from foreword.sampling.warp import draw, to_probs, warp_scores


def reference_probs(logits, warp: Warp):
    """Written out in float64 over sorted tokens; independent of the code under test."""
    if warp.temperature == 0:
        probs = np.zeros(len(logits))
        probs[int(np.argmax(logits))] = 1
        return probs
    scores = np.asarray(logits, np.float64) / warp.temperature
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    if warp.top_k:
        border = np.sort(probs)[::-1][min(warp.top_k, len(probs)) - 1]
        probs = np.where(probs >= border, probs, 0)
        probs /= probs.sum()
    if warp.top_p < 1:
        ordered = np.sort(probs)[::-1]
        border = ordered[int(np.searchsorted(np.cumsum(ordered), warp.top_p - 1e-12))]
        probs = np.where(probs >= border, probs, 0)
        probs /= probs.sum()
    if warp.min_p:
        probs = np.where(probs >= warp.min_p * probs.max() * (1 - 1e-9), probs, 0)
        probs /= probs.sum()
    return probs


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "warp",
    [
        Warp(),
        Warp(1.0),
        Warp(0.7),
        Warp(2.0, top_k=5),
        Warp(1.0, top_k=1),
        Warp(1.0, top_k=10_000),
        Warp(1.0, top_p=0.5),
        Warp(1.5, top_p=0.95),
        Warp(1.0, min_p=0.1),
        Warp(0.9, top_k=40, top_p=0.9, min_p=0.05),
        Warp(1.0, top_p=1e-6),
    ],
    ids=str,
)
def test_the_warp_equals_the_definition(warp, seed):
    logits = torch.tensor(np.random.default_rng(seed).normal(size=500) * 3, dtype=torch.float32)
    expected = reference_probs(logits.double().numpy() if warp.is_greedy else (logits / 1).numpy(), warp)
    np.testing.assert_allclose(to_probs(logits, warp).numpy(), expected, atol=1e-6)


def test_ties_stay_or_go_together():
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    assert torch.isfinite(warp_scores(logits, Warp(1.0, top_k=2))).tolist() == [False, True, True, True, True, False]


def test_greedy_ties_take_the_lowest_id():
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0])
    assert draw(logits, Warp(), 0) == 1
    assert to_probs(logits, Warp()).tolist() == [0, 1, 0, 0]


def test_a_row_does_not_depend_on_the_rows_beside_it():
    rows = torch.tensor(np.random.default_rng(0).normal(size=(8, 1000)), dtype=torch.float32)
    warp = Warp(0.8, top_p=0.9)
    alone = [warp_scores(row.clone(), warp) for row in rows]
    assert all(torch.equal(warp_scores(row, warp), one) for row, one in zip(rows, alone, strict=True))


# The counts below are of fixed seeds, so they either hold for ever or never; the bounds are 5 standard deviations.


def test_the_noise_draws_from_the_distribution():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])
    probs = reference_probs(logits.numpy(), Warp(1.0))
    draws = 5_000
    counts = np.bincount([draw(logits, Warp(1.0), row_key(3, 0, 0, p)) for p in range(draws)], minlength=5)
    for count, prob in zip(counts, probs, strict=True):
        assert abs(count - draws * prob) < 5 * math.sqrt(draws * prob * (1 - prob)) + 1


def test_the_noise_is_gumbel():
    values = torch.cat([gumbel(row_key(1, 0, 0, p), 49_152) for p in range(20)])
    assert torch.isfinite(values).all()
    assert abs(float(values.mean()) - 0.57722) < 5 * 1.2825 / math.sqrt(len(values))
    assert abs(float(values.var()) - math.pi**2 / 6) < 0.02


def test_bits_are_uniform_and_rows_unrelated():
    ids = torch.arange(1 << 16, dtype=torch.int32)
    rows = torch.stack([token_bits(row_key(s, 0, 0, p), ids) for s in range(4) for p in range(8)]).double()
    assert int(rows.min()) >= 0
    assert int(rows.max()) < 1 << 23
    correlation = np.corrcoef(rows.numpy())
    off_diagonal = correlation[~np.eye(len(correlation), dtype=bool)]
    assert np.abs(off_diagonal).max() < 5.5 / math.sqrt(1 << 16)  # 496 pairs
    by_bit = [((rows.long() >> bit) & 1).double().mean() for bit in range(23)]
    assert max(abs(float(m) - 0.5) for m in by_bit) < 5 * 0.5 / math.sqrt(rows.numel())


def test_noise_is_a_pure_function_of_its_place():
    same = gumbel(row_key(7, 0, Stream.TARGET, 12), 100)
    assert torch.equal(same, gumbel(row_key(7, 0, Stream.TARGET, 12), 100))
    assert torch.equal(same[:50], gumbel(row_key(7, 0, Stream.TARGET, 12), 50))
    others = [(8, 0, 0, 12), (7, 1, 0, 12), (7, 0, 1, 12), (7, 0, 0, 13)]
    assert all(not torch.equal(same, gumbel(row_key(*o), 100)) for o in others)


def test_known_noise_bits():
    """A format: runtimes compute the same bits. Values worked out with Python integers by hand-written code, below."""

    def mix(x):
        x ^= x >> 16
        x = x * 0x7FEB352D & 0xFFFFFFFF
        x ^= x >> 15
        x = x * 0x846CA68B & 0xFFFFFFFF
        return x ^ (x >> 16)

    key = row_key(123, 0, 0, 45)
    expected = [mix(mix(t ^ (key & 0xFFFFFFFF)) ^ (key >> 32)) >> 9 for t in (0, 1, 2, 49_151, 151_935)]
    assert token_bits(key, torch.tensor([0, 1, 2, 49_151, 151_935], dtype=torch.int32)).tolist() == expected
    assert 0 < uniform(key) < 1


BAD = [
    ({"temperature": -0.1}, "temperature is -0.1; allowed: 0"),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"temperature": float("inf")}, "temperature is inf"),
    ({"temperature": "warm"}, "temperature is 'warm'"),
    ({"top_p": 0.0}, "top_p is 0.0; allowed: above 0"),
    ({"top_p": 1.1}, "top_p is 1.1"),
    ({"top_p": float("nan")}, "top_p is nan"),
    ({"min_p": -0.1}, "min_p is -0.1"),
    ({"min_p": 1.5}, "min_p is 1.5"),
    ({"top_k": -1}, "top_k is -1"),
    ({"top_k": 2.5}, "top_k is 2.5"),
    ({"max_tokens": -1}, "max_tokens is -1; allowed: 0 or above"),
    ({"max_tokens": True}, "max_tokens is True"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 1 << 64}, "2\\^64"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=str)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**options)


def test_a_fresh_seed_is_reported_and_new():
    seeds = {SamplingParams().with_seed().seed for _ in range(20)}
    assert len(seeds) == 20
    assert SamplingParams(seed=5).with_seed().seed == 5
