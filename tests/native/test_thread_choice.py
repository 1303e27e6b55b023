"""The number of threads that measured passes choose: tokens and bits stay, and it is kept for the next start."""

import numpy as np
import pytest

from foreword.runtime import native_runtime, thread_choice
from foreword.runtime.base import Need
from foreword.runtime.native_runtime import NativeRuntime
from foreword.runtime.timed_passes import fill
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.native.models import LLAMA, RandomWeights

SPEC = LLAMA


def logits(decoder):
    cache = decoder.new_cache()
    slot = cache.open(16)
    fill(decoder, cache, slot, 8)
    out = decoder.forward(pack([DraftTree.chain([3, 5, 7])], [8], [slot]), cache, Need(logits=[0, 1, 2]))
    return out.logits.numpy().copy()


def test_a_pool_that_is_made_smaller_and_larger_computes_the_same_bits(cache_dir):
    runtime = NativeRuntime(threads=2, cache_dir=cache_dir)
    runtime._pool = pool = runtime._kernels.ThreadPool(5, 5)
    decoder = runtime.decoder(SPEC, RandomWeights(SPEC, 0))
    expected = logits(decoder)
    for asked, given in [(1, 1), (4, 4), (2, 2), (5, 5), (9, 5), (0, 1), (3, 3)]:
        pool.resize(asked)
        assert pool.num_threads == given
        np.testing.assert_array_equal(logits(decoder), expected)


@pytest.fixture
def four_cores(monkeypatch):
    """Races whose outcome is given, on a machine with four cores. What was raced is listed."""
    raced = []

    def race_on(decoder, resize):
        def race(first, second):
            raced.append((first, second))
            return [{(4, 2): 0.9, (2, 1): 1.7}[first, second]] * 3

        return race

    monkeypatch.setattr(native_runtime, "default_threads", lambda: 4)
    monkeypatch.setattr(native_runtime, "race_on", race_on)
    return raced


def test_the_first_decoder_finds_it_and_the_next_start_believes_it(four_cores, tmp_path):
    for _ in range(2):
        runtime = NativeRuntime(cache_dir=tmp_path)
        runtime.decoder(SPEC, RandomWeights(SPEC, 0))
        runtime.decoder(SPEC, RandomWeights(SPEC, 1))
        assert runtime.threads == 2
        assert four_cores == [(4, 2), (2, 1)]


def test_a_number_that_is_asked_for_is_not_raced(four_cores, tmp_path):
    runtime = NativeRuntime(threads=4, cache_dir=tmp_path)
    runtime.decoder(SPEC, RandomWeights(SPEC, 0))
    assert (runtime.threads, four_cores) == (4, [])


def test_tune_measures_anew(four_cores, tmp_path):
    runtime = NativeRuntime(cache_dir=tmp_path)
    decoder = runtime.decoder(SPEC, RandomWeights(SPEC, 0))
    assert runtime.find_threads(decoder, RandomWeights(SPEC, 0).fingerprint, anew=True) == 2
    assert four_cores == [(4, 2), (2, 1)] * 2


def test_a_busy_machine_teaches_nothing(four_cores, tmp_path, monkeypatch):
    monkeypatch.setattr(native_runtime, "race_on", lambda decoder, resize: lambda first, second: [0.5, 1.5] * 3)
    runtime = NativeRuntime(cache_dir=tmp_path)
    runtime.decoder(SPEC, RandomWeights(SPEC, 0))
    assert runtime.threads == 4
    assert not (tmp_path / "threads").exists()


def test_a_race_times_both_numbers_in_turn(cache_dir, monkeypatch):
    runtime = NativeRuntime(threads=2, cache_dir=cache_dir)
    decoder = runtime.decoder(SPEC, RandomWeights(SPEC, 0))
    current, seconds = [0], {2: 0.004, 1: 0.006}

    def resize(num_threads):
        current.append(num_threads)

    def timed(decoder, widths, contexts, rounds, warm_up=1):
        return {(n, contexts[0]): seconds.get(current[-1], 0.001) * n for n in widths}

    monkeypatch.setattr(thread_choice, "time_passes", timed)
    ratios = thread_choice.race_on(decoder, resize)(2, 1)
    assert current[1:] == [2, 1] * len(ratios)
    assert ratios == pytest.approx([1.5] * len(ratios))
