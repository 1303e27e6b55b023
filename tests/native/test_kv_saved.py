"""Rows of the cache as bytes: the same on every instruction set, and back bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foreword.runtime.base import Need
from tests.native.models import LLAMA, SPECS, chain, same_bits

TOKENS = np.random.default_rng(3).integers(0, 203, 100).tolist()


def filled(decoder: Any, num_tokens: int) -> tuple[Any, int]:
    cache = decoder.new_cache()
    slot = cache.open(num_tokens)
    decoder.forward(chain(TOKENS[:num_tokens], 0, slot), cache, Need())
    cache.commit(slot, range(num_tokens))
    return cache, slot


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SPECS)
def test_logits_after_loaded_rows_are_those_after_read_ones(
    make_decoder: Callable[..., Any], name: str, kv_dtype: str
) -> None:
    decoder = make_decoder(SPECS[name], kv_dtype=kv_dtype)
    cache, slot = filled(decoder, 100)
    other = decoder.new_cache()
    loaded = other.open(100)
    for first, count in ((0, 16), (16, 64), (80, 0), (80, 16)):
        rows = cache.save_rows(slot, first, count)
        assert len(rows) == cache.region_bytes(64) // 64 * count
        rows.flags.writeable = False  # as what was read from a file
        other.load_rows(loaded, rows)
    assert other.length(loaded) == 96
    for mine, theirs in zip(other.rows(loaded), cache.rows(slot), strict=True):
        assert same_bits(mine, theirs[:, :, :96].contiguous())
    cache.truncate(slot, 96)
    need = Need(logits=range(4))
    here, there = (
        decoder.forward(chain(TOKENS[96:], 96, s), c, need).logits for c, s in ((cache, slot), (other, loaded))
    )
    assert same_bits(here, there)


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
def test_every_instruction_set_saves_the_same_bytes(make_decoder: Callable[..., Any], kv_dtype: str) -> None:
    import foreword_kernels

    saved = set()
    for isa in foreword_kernels.available_isas():
        for threads in (1, 3):
            cache, slot = filled(make_decoder(LLAMA, isa=isa, threads=threads, kv_dtype=kv_dtype), 100)
            saved.add(cache.save_rows(slot, 16, 80).tobytes())
    assert len(saved) == 1


def test_a_region_with_another_past_saves_the_same_bytes(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache, slot = filled(decoder, 100)
    cache.truncate(slot, 0)
    decoder.forward(chain(TOKENS[:32][::-1], 0, slot), cache, Need())
    cache.commit(slot, range(32))
    fresh = decoder.new_cache()
    own = fresh.open(32)
    decoder.forward(chain(TOKENS[:32][::-1], 0, own), fresh, Need())
    fresh.commit(own, range(32))
    assert cache.save_rows(slot, 0, 32).tobytes() == fresh.save_rows(own, 0, 32).tobytes()


def test_what_is_refused(make_decoder: Callable[..., Any]) -> None:
    cache, slot = filled(make_decoder(LLAMA), 40)
    row_bytes = cache.region_bytes(64) // 64
    for first, size, message in [
        (8, 16, "rows begin at 8; allowed: multiples of 16"),
        (48, 16, "rows begin at 48; allowed: 0 to 40"),
        (-16, 16, "rows begin at -16"),
        (32, 16, "16 rows from 32 on are more than the 40 that are committed"),
        (0, 15, "are no whole groups of 16 rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            cache.handle.save_rows(slot, first, np.empty(size * row_bytes, np.uint8))
    with pytest.raises(ValueError, match="slot 7 is not open"):
        cache.load_rows(7, np.empty(0, np.uint8))
    with pytest.raises(ValueError, match="rows begin at 40; allowed: multiples of 16"):
        cache.load_rows(slot, np.empty(16 * row_bytes, np.uint8))
    cache.truncate(slot, 32)
    with pytest.raises(ValueError, match="48 rows do not fit behind 32 of 64"):
        cache.load_rows(slot, np.empty(48 * row_bytes, np.uint8))
    with pytest.raises(ValueError, match="are no whole groups"):
        cache.load_rows(slot, np.empty(7, np.uint8))
    assert cache.length(slot) == 32
