"""Regions that begin as copies of others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foreword.errors import CapacityError
from foreword.runtime.base import Need
from tests.native.models import LLAMA, batch_of, chain, same_bits

TOKENS = np.random.default_rng(3).integers(0, 203, 60).tolist()


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [0, 1, 15, 16, 37, 50])
def test_a_fork_goes_on_with_the_bits_of_its_source(
    make_decoder: Callable[..., Any], kv_dtype: str, length: int
) -> None:
    decoder = make_decoder(LLAMA, kv_dtype=kv_dtype)
    cache = decoder.new_cache()
    source = cache.open(64)
    decoder.forward(chain(TOKENS[:50], 0, source), cache, Need())
    cache.commit(source, range(50))
    held = cache.rows(source)
    fork = cache.fork(source, length, 200)
    assert (fork != source, cache.length(fork), cache.length(source), cache.num_open) == (True, length, 50, 2)
    for mine, theirs in zip(cache.rows(fork), held, strict=True):
        assert same_bits(mine, theirs[:, :, :length])
    alone = decoder.new_cache()
    whole = decoder.forward(
        chain(TOKENS[:length] + [7, 8], 0, alone.open(64)), alone, Need(logits=(length, length + 1))
    )
    # both regions in one pass, and neither shows in the other
    batch = batch_of([([7, 8], [-1, 0]), ([9], [-1])], [length, 50], [fork, source])
    assert same_bits(decoder.forward(batch, cache, Need(logits=(0, 1))).logits, whole.logits)
    cache.commit(fork, (0, 1))
    assert all(same_bits(mine, theirs) for mine, theirs in zip(cache.rows(source), held, strict=True))
    cache.close(source)
    assert cache.length(fork) == length + 2


def test_a_fork_has_room_for_what_it_copies(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    source = cache.open(200)
    decoder.forward(chain(TOKENS * 3, 0, source), cache, Need())
    cache.commit(source, range(180))
    fork = cache.fork(source, 180, 1)
    assert cache.length(fork) == 180


def test_what_a_fork_refuses(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    slot = cache.open(64)
    decoder.forward(chain(TOKENS[:5], 0, slot), cache, Need())
    for length in (1, -1):  # nothing is committed yet
        with pytest.raises(ValueError, match=f"length is {length}; allowed: 0 to 0"):
            cache.fork(slot, length, 64)
    with pytest.raises(ValueError, match="slot 7 is not open"):
        cache.fork(7, 0, 64)
    with pytest.raises(CapacityError, match="could not be allocated"):
        cache.fork(slot, 0, 1 << 40)
    assert cache.num_open == 1
