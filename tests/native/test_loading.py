"""Packed weights on disk, refusals, threads."""

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foreword.errors import CapacityError, CheckpointError, ConfigError, KernelError
from foreword.runtime.base import Need
from foreword.runtime.native_load import available_bytes, check_memory
from foreword.runtime.native_runtime import NativeRuntime
from foreword.runtime.native_threads import cpu_quota, default_threads
from tests.native.models import LLAMA, RandomWeights, chain, same_bits


def logits_of(decoder: Any) -> torch.Tensor:
    cache = decoder.new_cache()
    return decoder.forward(chain([1, 2, 3], 0, cache.open(64)), cache, Need(logits=range(3))).logits


def build(cache_dir: str) -> list[float]:
    return (
        logits_of(NativeRuntime(threads=1, cache_dir=cache_dir).decoder(LLAMA, RandomWeights(LLAMA))).flatten().tolist()
    )


def test_second_load_reads_the_cache(tmp_path: Path) -> None:
    first = NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, RandomWeights(LLAMA))
    (packed,) = (tmp_path / "native").iterdir()
    written = packed.stat().st_mtime_ns
    second = NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, RandomWeights(LLAMA))
    assert packed.stat().st_mtime_ns == written
    assert same_bits(logits_of(first), logits_of(second))
    other = NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, RandomWeights(LLAMA, seed=1))
    assert len(list((tmp_path / "native").iterdir())) == 2
    assert not same_bits(logits_of(first), logits_of(other))


def test_damaged_cache_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = build(str(tmp_path))
    (packed,) = (tmp_path / "native").iterdir()
    packed.write_bytes(packed.read_bytes()[:5000])
    assert build(str(tmp_path)) == expected
    assert "packing again" in caplog.text


def test_two_processes_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(build, [str(tmp_path)] * 2)
    assert first == second
    assert [path.suffix for path in (tmp_path / "native").iterdir()] == [".fwk"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert build(str(blocked)) == build(str(tmp_path / "cache"))
    assert "packing at every load" in caplog.text


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_damaged_weights_are_named(tmp_path: Path, bad: float) -> None:
    weights = RandomWeights(LLAMA)
    weights.tensors["layers.1.up.weight"][3, 4] = bad
    with pytest.raises(CheckpointError, match=r"layers\.1\.up\.weight holds NaN or infinity"):
        NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, weights)
    assert list((tmp_path / "native").iterdir()) == []


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    weights = RandomWeights(LLAMA)
    weights.tensors["layers.0.o.weight"] = torch.zeros(3, 4)
    with pytest.raises(CheckpointError, match=r"layers\.0\.o\.weight has shape \(3, 4\)"):
        NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, weights)


def test_too_large_a_model_is_refused_with_both_figures() -> None:
    needed = LLAMA.num_streamed_parameters * 1.01 / 1e9
    with pytest.raises(CapacityError, match=rf"{needed:.1f} GB and 0\.0 GB of memory are free"):
        check_memory(LLAMA, "int8", 1000)


def test_available_memory_honours_the_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    5000 kB\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 2000000


def test_thread_counts(tmp_path: Path) -> None:
    assert default_threads() >= 1
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) is None
    with pytest.raises(ConfigError, match="threads is 0"):
        NativeRuntime(threads=0)


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match="allowed: int8, int4"):
        NativeRuntime(dtype="float32")
    with pytest.raises(KernelError, match="'mmx' does not run here; allowed: auto"):
        NativeRuntime(isa="mmx")


def test_several_python_threads_share_a_decoder(make_decoder: Callable[..., Any]) -> None:
    """Four threads, two decoders on two pools, at once: everybody gets the bits of a quiet run."""
    decoders = [make_decoder(LLAMA), make_decoder(LLAMA, threads=3)]
    expected = logits_of(decoders[0])
    results: list[bool] = []

    def work(decoder: Any) -> None:
        results.extend(same_bits(logits_of(decoder), expected) for _ in range(50))

    threads = [threading.Thread(target=work, args=(decoders[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 200
