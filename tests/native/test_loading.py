"""Packed weights on disk, refusals, threads."""

import json
import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from foreword.errors import CapacityError, CheckpointError, ConfigError, KernelError
from foreword.runtime import native_load
from foreword.runtime.base import Need
from foreword.runtime.native_load import available_bytes, check_memory
from foreword.runtime.native_runtime import NativeRuntime
from foreword.runtime.native_threads import cpu_quota, default_threads
from foreword.runtime.native_weights import write_packed
from foreword.runtime.packed_file import PackedHeader, cache_path
from foreword.seal import sealed_file
from tests.native.models import LLAMA, RandomWeights, chain, same_bits


def logits_of(decoder: Any) -> torch.Tensor:
    cache = decoder.new_cache()
    return decoder.forward(chain([1, 2, 3], 0, cache.open(64)), cache, Need(logits=range(3))).logits


def build(cache_dir: str) -> list[float]:
    return (
        logits_of(NativeRuntime(threads=1, cache_dir=cache_dir).decoder(LLAMA, RandomWeights(LLAMA))).flatten().tolist()
    )


def packed_files(cache_dir: Path) -> list[Path]:
    """All that lies there but locks and seals."""
    return [path for path in (cache_dir / "native").iterdir() if path.suffix not in (".lock", ".seal")]


def test_second_load_reads_the_cache(tmp_path: Path) -> None:
    first = NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, RandomWeights(LLAMA))
    (packed,) = packed_files(tmp_path)
    written = packed.stat().st_mtime_ns
    second = NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, RandomWeights(LLAMA))
    assert packed.stat().st_mtime_ns == written
    assert same_bits(logits_of(first), logits_of(second))
    other = NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, RandomWeights(LLAMA, seed=1))
    assert len(packed_files(tmp_path)) == 2
    assert not same_bits(logits_of(first), logits_of(other))


def test_damaged_cache_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = build(str(tmp_path))
    (packed,) = packed_files(tmp_path)
    packed.write_bytes(packed.read_bytes()[:5000])
    assert build(str(tmp_path)) == expected
    assert "packing again" in caplog.text


def without_matrices(packed: Path) -> None:
    """The header of another layout: valid, but nothing is where it is looked for."""
    raw = packed.read_bytes()
    header = json.dumps(asdict(PackedHeader("x", hot_end=4096))).encode()
    packed.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + len(header) :])


def beyond_the_end(packed: Path) -> None:
    """A matrix that starts after the last byte."""
    raw = packed.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["matrices"]["head"]["tiles"] = len(raw)
    changed = json.dumps(header).encode()
    packed.write_bytes(len(changed).to_bytes(8, "little") + changed + raw[8 + len(changed) :])


@pytest.mark.parametrize("damage", [without_matrices, beyond_the_end])
def test_a_cache_of_another_layout_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    expected = build(str(tmp_path))
    (packed,) = packed_files(tmp_path)
    whole = packed.read_bytes()
    damage(packed)
    assert build(str(tmp_path)) == expected
    assert "packing again" in caplog.text
    assert packed.read_bytes() == whole


@pytest.mark.parametrize("kind", [OSError, RuntimeError, KeyError])
def test_a_cache_that_cannot_be_opened_is_gone_past(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    expected = build(str(tmp_path))

    def fail(*_: object) -> None:
        raise kind("not there")

    monkeypatch.setattr(native_load.PackedLoader, "_open", fail)
    assert build(str(tmp_path)) == expected
    assert "packing again" in caplog.text
    assert "made again at every load" in caplog.text


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    path = cache_path(tmp_path, LLAMA, RandomWeights(LLAMA), "int8")
    path.parent.mkdir()
    path.with_name(f"{path.name}.abc.part").write_bytes(b"half")
    other = path.with_name("another.fwk.abc.part")
    other.write_bytes(b"somebody's")
    build(str(tmp_path))
    assert sorted(packed_files(tmp_path)) == sorted([path, other])


def test_the_second_writer_waits_and_finds_the_file(tmp_path: Path) -> None:
    weights = RandomWeights(LLAMA)
    path = cache_path(tmp_path, LLAMA, weights, "int8")
    path.parent.mkdir()
    writer = threading.Thread(target=write_packed, args=(path, LLAMA, weights, "int8"))
    with FileLock(path.with_name(path.name + ".lock"), thread_local=False):
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert packed_files(tmp_path) == []
        with sealed_file(path, weights.fingerprint) as file:
            file.write(b"by the first")
    writer.join(10)
    assert path.read_bytes() == b"by the first"


def test_a_packed_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bool] = []
    path = tmp_path / "x.fwk"
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append(path.exists()))
    write_packed(path, LLAMA, RandomWeights(LLAMA), "int8")
    assert flushed == [False, False, True]  # its seal, the file, and the seal again with the file's times
    assert path.exists()


def test_two_processes_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(build, [str(tmp_path)] * 2)
    assert first == second
    assert len(packed_files(tmp_path)) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert build(str(blocked)) == build(str(tmp_path / "cache"))
    assert caplog.text.count("made again at every load") == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_damaged_weights_are_named(tmp_path: Path, bad: float) -> None:
    weights = RandomWeights(LLAMA)
    weights.tensors["layers.1.up.weight"][3, 4] = bad
    with pytest.raises(CheckpointError, match=r"layers\.1\.up\.weight holds NaN or infinity"):
        NativeRuntime(threads=1, cache_dir=tmp_path).decoder(LLAMA, weights)
    assert packed_files(tmp_path) == []


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
    (tmp_path / "memory.current").write_text("2900000\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 100000
    (tmp_path / "memory.stat").write_text("anon 800000\nactive_file 200000\ninactive_file 1900000\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 2000000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 5000 * 1024


def test_available_memory_honours_a_container_of_the_first_version(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("3000000\n")
    (folder / "memory.usage_in_bytes").write_text("2900000\n")
    (folder / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 1900000\n")
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
