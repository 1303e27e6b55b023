"""The promise of the native runtime: a token's logits are the same bits whatever shares its pass: equal, not close."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foreword.config import ModelSpec
from foreword.runtime.base import Need
from tests.native.models import FAMILY_SPECS, LLAMA, SPECS, batch_of, chain, random_tree, same_bits

TOKENS = np.random.default_rng(1).integers(0, 203, 90).tolist()


def isas() -> list[str]:
    try:
        import foreword_kernels
    except ImportError:
        return ["portable"]
    return foreword_kernels.available_isas()


def one_by_one(decoder: Any, tokens: list[int]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Logits of plain decoding, and the cache it leaves."""
    cache = decoder.new_cache()
    slot = cache.open(len(tokens))
    rows = []
    for position, token in enumerate(tokens):
        rows.append(decoder.forward(chain([token], position, slot), cache, Need(logits=(0,))).logits)
        cache.commit(slot, (0,))
    return torch.cat(rows), cache.rows(slot)


@dataclass(frozen=True)
class Plain:
    """A model, how it keeps keys and values, and what plain decoding gives on it."""

    spec: ModelSpec
    kv_dtype: str
    logits: Tensor
    rows: tuple[Tensor, Tensor]


ALL = {**SPECS, **FAMILY_SPECS}
# Families beside Llama's: attention's part is the same code in both formats.
CASES = [
    *((name, kv) for kv in ("float32", "bfloat16") for name in SPECS),
    *((name, "bfloat16") for name in FAMILY_SPECS),
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def plain(request: pytest.FixtureRequest, make_decoder: Callable[..., Any]) -> Plain:
    name, kv_dtype = request.param
    spec = ALL[name]
    return Plain(spec, kv_dtype, *one_by_one(make_decoder(spec, threads=1, kv_dtype=kv_dtype), TOKENS))


NARROW = ((90,), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12))  # all at once, and passes of every narrow width


def read_in_pieces(decoder: Any, cache: Any, sizes: tuple[int, ...], expected: Tensor) -> int:
    """Reads and keeps `TOKENS` in passes of these sizes, whose logits must have the expected bits; returns the slot."""
    slot, at = cache.open(128), 0
    for size in sizes:
        out = decoder.forward(chain(TOKENS[at : at + size], at, slot), cache, Need(logits=range(size)))
        assert same_bits(out.logits, expected[at : at + size]), (sizes, size)
        cache.commit(slot, range(size))
        at += size
    return slot


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_path_thread_count_and_width_gives_the_same_bits(
    plain: Plain, make_decoder: Any, isa: str, threads: int
) -> None:
    expected, rows = plain.logits, plain.rows
    decoder = make_decoder(plain.spec, isa=isa, threads=threads, kv_dtype=plain.kv_dtype)
    cache = decoder.new_cache()
    for sizes in (*NARROW, (17, 33, 40), (16, 64, 10)):
        slot = read_in_pieces(decoder, cache, sizes, expected)
        assert all(same_bits(a, b) for a, b in zip(cache.rows(slot), rows, strict=True))
        cache.close(slot)


@pytest.mark.parametrize("threads", [4, 8, 16])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_more_threads_than_cores_or_work(make_decoder: Callable[..., Any], dtype: str, threads: int) -> None:
    """Tiles go to whoever comes; some threads find none."""
    expected, _ = one_by_one(make_decoder(LLAMA, threads=1, dtype=dtype), TOKENS)
    decoder = make_decoder(LLAMA, threads=threads, dtype=dtype)
    cache = decoder.new_cache()
    for sizes in ((90,), (1, 2, 7, 17, 63)):
        read_in_pieces(decoder, cache, sizes, expected)


@pytest.mark.parametrize("seed", range(8))
def test_trees_and_batches_give_the_bits_of_plain_decoding(plain: Plain, make_decoder: Any, seed: int) -> None:
    """Two requests share a pass: a random tree that holds the true path, and a prompt chunk; then the path is kept."""
    spec, expected, rows = plain.spec, plain.logits, plain.rows
    rng = np.random.default_rng(seed)
    decoder = make_decoder(spec, isa=isas()[seed % len(isas())], kv_dtype=plain.kv_dtype)
    cache = decoder.new_cache()
    prefix, depth, chunk = int(rng.integers(1, 40)), int(rng.integers(1, 10)), int(rng.integers(1, 20))
    slots = [cache.open(128), cache.open(128)]
    for slot, length in zip(slots, (13, prefix), strict=True):
        decoder.forward(chain(TOKENS[:length], 0, slot), cache, Need())
        cache.commit(slot, range(length))
    tokens, parents, path = random_tree(
        rng, TOKENS[prefix : prefix + depth], int(rng.integers(depth, 30)), spec.vocab_size
    )
    prompt = (TOKENS[13 : 13 + chunk], list(range(-1, chunk - 1)))
    batch = batch_of([prompt, (tokens, parents)], [13, prefix], slots)
    logits = decoder.forward(batch, cache, Need(logits=range(batch.num_nodes))).logits
    assert same_bits(logits[:chunk], expected[13 : 13 + chunk])
    assert same_bits(logits[[chunk + node for node in path]], expected[prefix : prefix + depth])
    cache.commit(slots[1], path)
    for held, whole in zip(cache.rows(slots[1]), rows, strict=True):
        assert same_bits(held, whole[:, :, : prefix + depth])
    after = decoder.forward(
        chain(TOKENS[prefix + depth : prefix + depth + 3], prefix + depth, slots[1]), cache, Need(logits=range(3))
    )
    assert same_bits(after.logits, expected[prefix + depth : prefix + depth + 3])


def test_int4_is_invariant_too(make_decoder: Any) -> None:
    expected, _ = one_by_one(make_decoder(LLAMA, dtype="int4", threads=1), TOKENS)
    for isa in isas():
        decoder = make_decoder(LLAMA, dtype="int4", isa=isa)
        cache = decoder.new_cache()
        for sizes in NARROW:
            read_in_pieces(decoder, cache, sizes, expected)


def test_a_changed_ancestor_shows(make_decoder: Any) -> None:
    """The tests above can fail: another token on the path gives other bits."""
    decoder = make_decoder(LLAMA)
    expected, _ = one_by_one(decoder, TOKENS[:20])
    cache = decoder.new_cache()
    changed = TOKENS[:10] + [(TOKENS[10] + 1) % 203] + TOKENS[11:20]
    logits = decoder.forward(chain(changed, 0, cache.open(64)), cache, Need(logits=range(20))).logits
    assert same_bits(logits[:10], expected[:10])
    assert not any(same_bits(logits[i], expected[i]) for i in range(10, 20))
