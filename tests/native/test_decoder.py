"""What a pass computes, against a float64 reference of the same rounded numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from foreword.errors import ConfigError, KernelError
from foreword.runtime.base import Need
from tests.native import reference
from tests.native.models import LLAMA, SPECS, RandomWeights, batch_of, chain, same_bits

TOKENS = np.random.default_rng(0).integers(0, 203, 40).tolist()


@pytest.mark.parametrize("name", SPECS)
def test_logits_are_those_of_the_reference(make_decoder: Callable[..., Any], name: str) -> None:
    """Rounding to int8 is a step function: where the last bits of an activation differ, one step may. So most logits
    agree to 1e-4 of their spread, all to a few steps."""
    spec = SPECS[name]
    decoder = make_decoder(spec)
    cache = decoder.new_cache()
    slot = cache.open(64)
    logits = decoder.forward(chain(TOKENS, 0, slot), cache, Need(logits=range(len(TOKENS)))).logits
    expected = reference.logits(spec, RandomWeights(spec).tensors, TOKENS)
    error = (logits.double() - expected).abs() / expected.std()
    assert error.median() < 1e-4
    assert error.max() < 0.1


def test_prompt_in_pieces_equals_prompt_at_once(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    whole, pieces = cache.open(64), cache.open(8)
    expected = decoder.forward(chain(TOKENS, 0, whole), cache, Need(logits=range(40))).logits
    got, at = [], 0
    for size in (1, 7, 16, 3, 13):
        cache.reserve(pieces, at + size)
        batch = chain(TOKENS[at : at + size], at, pieces)
        got.append(decoder.forward(batch, cache, Need(logits=range(size))).logits)
        cache.commit(pieces, range(size))
        at += size
    cache.commit(whole, range(40))
    assert same_bits(torch.cat(got), expected)
    for a, b in zip(cache.rows(whole), cache.rows(pieces), strict=True):
        assert same_bits(a, b)


def test_taps_hidden_and_inputs(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    slot = cache.open(64)
    need = Need(logits=(1, 4), taps=(0, 1, 2), hidden=True)
    out = decoder.forward(chain(TOKENS[:6], 0, slot), cache, need)
    weights = RandomWeights(LLAMA).tensors
    embedded = weights["embed.weight"][TOKENS[:6]].float()
    assert same_bits(out.taps[:, 0], embedded)
    normed = reference.rms_norm(out.taps[:, 2].double(), weights["norm.weight"], LLAMA.norm_eps)
    torch.testing.assert_close(out.hidden.double(), normed, atol=1e-5, rtol=1e-5)
    again = decoder.forward(chain([0] * 6, 0, slot), cache, need, inputs=embedded)
    assert same_bits(again.logits, out.logits)


def test_top_tokens(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    slot = cache.open(64)
    nodes = (2, 0, 5)
    out = decoder.forward(chain(TOKENS[:6], 0, slot), cache, Need(top_k=7, top_nodes=nodes, logits=nodes))
    values, ids = out.logits.log_softmax(dim=-1).topk(7)
    assert torch.equal(out.top_ids, ids)
    torch.testing.assert_close(out.top_logprobs, values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda slot: chain([1, 500], 0, slot), "token id 500 is outside the vocabulary of 203"),
        (lambda slot: chain([1, 2], 3, slot), "kv_len is 3 but slot 0 holds 0"),
        (lambda slot: chain([1] * 65, 0, slot), "the region of slot 0 has 64 rows; reserve 65"),
        (lambda slot: chain([1], 0, slot + 1), "slot 1 is not open"),
        (lambda slot: batch_of([([1, 2], [-1, -1])], [0], [slot]), "the parent of node 1 is not an earlier node"),
    ],
)
def test_passes_that_do_not_fit_are_refused(make_decoder: Callable[..., Any], batch: Any, message: str) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    with pytest.raises(KernelError, match=message):
        decoder.forward(batch(cache.open(64)), cache, Need())


def test_cache_of_another_runtime_is_refused(make_decoder: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="take the decoder's new_cache"):
        make_decoder(LLAMA).forward(chain([1], 0, 0), object(), Need())


def test_projection_equals_its_reference(make_decoder: Callable[..., Any]) -> None:
    from foreword.runtime.native_runtime import NativeRuntime

    generator = torch.Generator().manual_seed(3)
    weight, bias, x = (torch.randn(size, generator=generator) for size in ((100, 70), (100,), (9, 70)))
    projection = NativeRuntime(threads=2).projection(weight, bias)
    out = projection(x)
    torch.testing.assert_close(out.double(), reference.linear(x, weight, bias), atol=1e-4, rtol=1e-4)
    assert same_bits(projection(x[3:4])[0], out[3])


def test_regions(make_decoder: Callable[..., Any]) -> None:
    cache = make_decoder(LLAMA).new_cache()
    first, second = cache.open(10), cache.open(10)
    assert (first, second, cache.num_open) == (0, 1, 2)
    cache.close(first)
    assert cache.open(5) == first
    cache.close(first)
    cache.close(second)
    assert (cache.num_open, cache.num_bytes) == (0, 0)
    with pytest.raises(ValueError, match="slot 1 is not open"):
        cache.length(second)
