"""Draws fused after the head, against `foreword.sampling`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from foreword.runtime.base import Draw, Need
from foreword.sampling import warp as warps
from foreword.sampling.noise import gumbel, row_key, token_bits
from foreword.sampling.params import Warp
from tests.native.models import LLAMA, chain
from tests.native.test_invariance import isas

TOKENS = np.random.default_rng(2).integers(0, 203, 30).tolist()
WARPS = [
    Warp(),
    Warp(0.7),
    Warp(1.5),
    Warp(0.8, top_k=20),
    Warp(0.8, top_p=0.9),
    Warp(1.2, top_k=50, top_p=0.95),
    Warp(1.0, min_p=0.05),
    Warp(5.0, top_k=3, top_p=0.8, min_p=0.1),
]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("seed", [0, 7, 2**63])
def test_noise_is_that_of_sampling(isa: str, seed: int) -> None:
    import foreword_kernels

    key, count = row_key(seed, 0, 0, 123), 1001
    noise, bits = np.empty(count, dtype=np.float32), np.empty(count, dtype=np.int32)
    foreword_kernels.gumbel(isa, key, 0, noise, bits)
    assert np.array_equal(bits, token_bits(key, torch.arange(count, dtype=torch.int32)).numpy())
    np.testing.assert_allclose(noise, gumbel(key, count).numpy(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_choices_are_those_of_sampling(make_decoder: Callable[..., Any], warp: Warp, isa: str) -> None:
    decoder = make_decoder(LLAMA, isa=isa, threads=3)
    cache = decoder.new_cache()
    batch = chain(TOKENS, 0, cache.open(64))
    draws = [Draw(node, warp, row_key(5, 0, 0, node + 1)) for node in range(30)]
    out = decoder.forward(batch, cache, Need(draws=draws, logits=range(30)))
    assert out.choices == [warps.draw(out.logits[draw.node], warp, draw.key) for draw in draws]
    # neither what else the pass makes nor the other draws show in a draw
    assert decoder.forward(batch, cache, Need(draws=draws)).choices == out.choices
    assert decoder.forward(batch, cache, Need(draws=[draws[11]])).choices == [out.choices[11]]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_rows_that_stand_for_tokens_meet_those_tokens_noise(
    make_decoder: Callable[..., Any], warp: Warp, isa: str
) -> None:
    """As over a vocabulary in which all other tokens are out."""
    names = np.sort(np.random.default_rng(4).choice(5000, 203, replace=False)).astype(np.int32)
    decoder = make_decoder(LLAMA, isa=isa, threads=2)
    cache = decoder.new_cache()
    draws = [Draw(node, warp, row_key(9, 0, 0, node + 1)) for node in range(30)]
    out = decoder.forward(chain(TOKENS, 0, cache.open(64)), cache, Need(draws=draws, names=names, logits=range(30)))
    for draw, row in zip(draws, out.choices, strict=True):
        logits = torch.full((5000,), float("-inf"))
        logits[torch.from_numpy(names).long()] = out.logits[draw.node]
        assert int(names[row]) == warps.draw(logits, warp, draw.key)
        assert row == warps.draw(out.logits[draw.node], warp, draw.key, torch.from_numpy(names))


def test_several_draws_of_one_node(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    draws = [Draw(2, Warp(20.0), row_key(seed, 0, 0, 3)) for seed in range(50)]
    out = decoder.forward(chain(TOKENS[:4], 0, cache.open(64)), cache, Need(draws=draws, logits=(2,)))
    assert out.choices == [warps.draw(out.logits[0], draw.warp, draw.key) for draw in draws]
    assert len(set(out.choices)) > 5


def test_ties_take_the_lowest_id(make_decoder: Callable[..., Any]) -> None:
    """A zero residual gives equal logits everywhere."""
    decoder = make_decoder(LLAMA, threads=3)
    cache = decoder.new_cache()
    zeros = torch.zeros(1, LLAMA.hidden_size)
    out = decoder.forward(
        chain([0], 0, cache.open(64)), cache, Need(draws=[Draw(0, Warp(), 0)], logits=(0,)), inputs=zeros
    )
    assert torch.all(out.logits == 0)
    assert out.choices == [0]


def test_ties_take_the_lowest_id_whichever_thread_takes_which_strip(make_decoder: Callable[..., Any]) -> None:
    """More threads than cores take strips of each other's shares, in any order."""
    decoder = make_decoder(replace(LLAMA, vocab_size=4096), threads=4)
    cache = decoder.new_cache()
    slot, zeros = cache.open(64), torch.zeros(8, LLAMA.hidden_size)
    draws = [Draw(node, Warp(), node) for node in range(8)]
    for _ in range(400):
        out = decoder.forward(chain([0] * 8, 0, slot), cache, Need(draws=draws), inputs=zeros)
        assert out.choices == [0] * 8
