"""Keys and values in bfloat16: half the memory, rounded once. That they stay invariant is in test_invariance.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foreword.errors import CapacityError, ConfigError
from foreword.runtime.base import Need
from foreword.runtime.native_runtime import NativeRuntime
from foreword.runtime.select import choose_runtime, make_runtime
from tests.native import reference
from tests.native.models import LLAMA, QWEN2, SPECS, RandomWeights, chain, same_bits

TOKENS = np.random.default_rng(3).integers(0, 203, 40).tolist()


@pytest.mark.parametrize("name", SPECS)
def test_logits_are_those_of_rounded_keys_and_values(make_decoder: Callable[..., Any], name: str) -> None:
    """Where float32 and float64 fall on two sides of a rounding border of a key, one step of 2^-8 shows: so most
    agree closely, all within a few steps; and the reference without rounding is further off."""
    spec, weights = SPECS[name], RandomWeights(SPECS[name]).tensors
    decoder = make_decoder(spec, kv_dtype="bfloat16")
    cache = decoder.new_cache()
    logits = decoder.forward(chain(TOKENS, 0, cache.open(64)), cache, Need(logits=range(40))).logits.double()
    rounded, exact = (reference.logits(spec, weights, TOKENS, dtype) for dtype in ("bfloat16", "float32"))
    error = (logits - rounded).abs() / rounded.std()
    assert error.median() < 1e-3
    assert error.max() < 0.1
    assert error.median() < 0.2 * ((logits - exact).abs() / rounded.std()).median()


def test_rows_are_rounded_to_the_nearest_even(make_decoder: Callable[..., Any]) -> None:
    """The first layer's keys and values depend on nothing that is rounded to bfloat16 before them."""
    rows = {}
    for kv_dtype in ("float32", "bfloat16"):
        decoder = make_decoder(LLAMA, kv_dtype=kv_dtype)
        cache = decoder.new_cache()
        slot = cache.open(64)
        decoder.forward(chain(TOKENS, 0, slot), cache, Need())
        cache.commit(slot, range(40))
        rows[kv_dtype] = cache.rows(slot)
    for exact, rounded in zip(rows["float32"], rows["bfloat16"], strict=True):
        assert same_bits(rounded[0], exact[0].bfloat16().float())
        assert not same_bits(rounded[0], exact[0])
        assert same_bits(rounded, rounded.bfloat16().float())


def test_half_the_memory_that_also_grows(make_decoder: Callable[..., Any]) -> None:
    sizes = {}
    for kv_dtype in ("float32", "bfloat16"):
        cache = make_decoder(LLAMA, kv_dtype=kv_dtype).new_cache()
        slot = cache.open(100)
        opened = cache.num_bytes
        cache.reserve(slot, 1000)
        sizes[kv_dtype] = opened, cache.num_bytes
    # 2 layers, 2 heads of 12 padded to 16, a key and a value; rows in steps of 64
    assert sizes["float32"] == (128 * 2 * 2 * 16 * 2 * 4, 1024 * 2 * 2 * 16 * 2 * 4)
    assert sizes["bfloat16"] == tuple(size // 2 for size in sizes["float32"])


def test_growing_keeps_what_is_held(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA, kv_dtype="bfloat16")
    cache = decoder.new_cache()
    slot = cache.open(64)
    decoder.forward(chain(TOKENS, 0, slot), cache, Need())
    cache.commit(slot, range(0, 40, 3))
    before = cache.rows(slot)
    cache.reserve(slot, 700)
    assert all(same_bits(a, b) for a, b in zip(before, cache.rows(slot), strict=True))


@pytest.mark.parametrize(("kv_dtype", "num_bytes"), [("float32", 4), ("bfloat16", 2)])
def test_the_error_says_what_a_region_would_take(
    make_decoder: Callable[..., Any], kv_dtype: str, num_bytes: int
) -> None:
    cache = make_decoder(LLAMA, kv_dtype=kv_dtype).new_cache()
    capacity = 1 << 31
    mib = capacity * 2 * 2 * 16 * 2 * num_bytes // 2**20
    with pytest.raises(CapacityError, match=f"a {kv_dtype} key-value cache of {capacity} positions takes {mib} MiB"):
        cache.open(capacity)


def test_first_layers_run_on_the_targets_cache(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA, kv_dtype="bfloat16")
    first = decoder.first_layers(1)
    own, shared = first.new_cache(), decoder.new_cache()
    logits = []
    for cache in (own, shared):
        assert cache.dtype == "bfloat16"
        logits.append(first.forward(chain(TOKENS[:9], 0, cache.open(64)), cache, Need(logits=range(9))).logits)
    assert same_bits(*logits)


def test_how_it_is_chosen() -> None:
    assert choose_runtime("native").kv_dtype == "bfloat16"
    runtime = make_runtime(choose_runtime("native"), threads=1)
    assert isinstance(runtime, NativeRuntime)
    assert runtime.kv_dtype == "bfloat16"
    assert choose_runtime("torch", "float32", "cpu").kv_dtype == "float32"
    assert choose_runtime("torch", "bfloat16", "cpu", "bfloat16").kv_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("native", "auto", "cpu", "bfloat"), r"unknown kv_dtype 'bfloat' \(did you mean 'bfloat16'\?\)"),
        (
            ("torch", "float32", "cpu", "bfloat16"),
            "the torch runtime keeps keys and values in the dtype it computes in",
        ),
    ],
)
def test_what_does_not_go_together(options: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_runtime(*options)
    with pytest.raises(ConfigError, match="unknown kv_dtype of the native runtime 'int8'"):
        NativeRuntime(kv_dtype="int8")


def test_the_kernels_refuse_other_formats() -> None:
    import foreword_kernels

    with pytest.raises(ValueError, match="'float16'; allowed: float32, bfloat16"):
        foreword_kernels.KvCache(1, 1, 16, "float16")


def test_rounding_of_awkward_values(cache_dir: Path) -> None:
    """Values that are nothing but a bias: ties to both sides, the largest numbers, numbers below the normal ones."""
    awkward = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20, 3.38e38, 3.402e38, 1e-40, 0.0, 2.0**-126]
    values = torch.tensor(awkward).repeat(22)[:192]
    weights = RandomWeights(QWEN2)
    weights.tensors["layers.0.v.weight"] = torch.zeros(192, 128)
    weights.tensors["layers.0.v.bias"] = values
    weights.fingerprint = "awkward values"
    decoder = NativeRuntime(threads=1, cache_dir=cache_dir, kv_dtype="bfloat16").decoder(QWEN2, weights)
    cache = decoder.new_cache()
    slot = cache.open(64)
    decoder.forward(chain([5], 0, slot), cache, Need())
    cache.commit(slot, [0])
    assert same_bits(cache.rows(slot)[1][0].flatten(), values.bfloat16().float())
