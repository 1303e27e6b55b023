"""GGUF weights in the cache: the same values, made once, whole or not there."""

import multiprocessing
from dataclasses import replace
from random import Random

import pytest
import torch
from safetensors.torch import save

from foreword.checkpoint import cache as cache_module
from foreword.checkpoint import open_checkpoint
from foreword.checkpoint.families import FAMILIES
from foreword.checkpoint.gguf_file import GgufFile
from foreword.errors import ConfigError
from foreword.files import PART_SUFFIX, whole_file
from foreword.runtime.packed_file import cache_path
from foreword.seal import sealed_file
from tests.support.tiny_files import GGUF_SIZES, write_gguf
from tests.support.tiny_models import TinyWeights, tiny_spec


@pytest.fixture
def tiny_gguf(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", TinyWeights(tiny_spec(**GGUF_SIZES)), "Q8_0")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def files_of(cache):
    return sorted(path.name for path in (cache / "converted").iterdir() if path.suffix not in (".lock", ".seal"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_converted_weights_have_the_values_of_the_file(tiny_gguf, cache, dtype):
    checkpoint = open_checkpoint(tiny_gguf, cache_dir=cache)
    weights = checkpoint.as_dtype(dtype)
    assert weights.fingerprint == checkpoint.fingerprint
    for name in TinyWeights(checkpoint.spec).tensors:
        assert weights.has_tensor(name)
        assert torch.equal(weights.tensor(name), checkpoint.tensor(name).to(getattr(torch, dtype))), name
    assert not weights.has_tensor("head.weight")


def test_a_family_whose_order_of_rows_is_corrected_is_converted_again(tiny_gguf, cache, monkeypatch):
    """What foreword knows of a family is no part of the file: conversions made with a wrong fact may not be read again."""
    right = open_checkpoint(tiny_gguf, cache_dir=cache).as_dtype("float32").tensor("layers.0.q.weight").clone()
    wrong = replace(FAMILIES["llama"], gguf_permuted_qk=False)
    monkeypatch.setitem(FAMILIES, "llama", wrong)
    assert not torch.equal(
        open_checkpoint(tiny_gguf, cache_dir=cache).as_dtype("float32").tensor("layers.0.q.weight"), right
    )
    keys = {cache_path(cache, c.spec, c, "int8") for c in [open_checkpoint(tiny_gguf, cache_dir=cache)]}
    monkeypatch.undo()
    again = open_checkpoint(tiny_gguf, cache_dir=cache)
    assert torch.equal(again.as_dtype("float32").tensor("layers.0.q.weight"), right)
    assert cache_path(cache, again.spec, again, "int8") not in keys


def test_the_second_opening_converts_nothing(tiny_gguf, cache, monkeypatch):
    reports = []
    open_checkpoint(tiny_gguf, cache_dir=cache).as_dtype("float32", lambda *report: reports.append(report))
    whats, done, totals = zip(*reports, strict=True)
    assert set(whats) == {"converting to float32"}
    assert list(done) == sorted(done)
    assert done[-1] == totals[-1]

    def refuse(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(GgufFile, "tensor", refuse)
    monkeypatch.setattr(cache_module, "_hash", refuse)  # nor is the file read through for its checksum
    assert open_checkpoint(tiny_gguf, cache_dir=cache).as_dtype("float32").has_tensor("norm.weight")


def test_another_file_under_the_same_name_is_converted_anew(tmp_path, cache):
    path = tmp_path / "m.gguf"
    for seed in (0, 1):
        weights = TinyWeights(tiny_spec(**GGUF_SIZES), seed)
        write_gguf(path, weights)
        got = open_checkpoint(path, cache_dir=cache).as_dtype("float32").tensor("embed.weight")
        assert torch.equal(got, weights.tensor("embed.weight"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_cut_conversion_leaves_nothing(tiny_gguf, cache, monkeypatch, error):
    whole = GgufFile.tensor

    def cut(self, name):
        if name == "layers.1.o.weight":
            raise error
        return whole(self, name)

    monkeypatch.setattr(GgufFile, "tensor", cut)
    checkpoint = open_checkpoint(tiny_gguf, cache_dir=cache)
    with pytest.raises(error):
        checkpoint.as_dtype("float32")
    assert files_of(cache) == []
    monkeypatch.setattr(GgufFile, "tensor", whole)
    assert torch.equal(
        checkpoint.as_dtype("float32").tensor("layers.1.o.weight"), checkpoint.tensor("layers.1.o.weight")
    )


def test_what_a_killed_conversion_left_is_swept_and_damage_is_made_good(tiny_gguf, cache):
    checkpoint = open_checkpoint(tiny_gguf, cache_dir=cache)
    checkpoint.as_dtype("float32")
    (name,) = files_of(cache)
    converted = cache / "converted" / name
    content = converted.read_bytes()
    for damaged in (content[:-100], content[:50], b"", content.replace(checkpoint.fingerprint.encode(), b"0" * 64)):
        converted.write_bytes(damaged)
        (cache / "converted" / f"{name}.abc{PART_SUFFIX}").write_bytes(content[:100])
        checkpoint.as_dtype("float32")
        assert files_of(cache) == [name]
        assert converted.read_bytes() == content


def test_a_cache_that_cannot_be_written_costs_only_time(tiny_gguf, tmp_path, caplog):
    (tmp_path / "blocked").write_text("a file where the cache folder should be")
    checkpoint = open_checkpoint(tiny_gguf, cache_dir=tmp_path / "blocked" / "cache")
    weights = checkpoint.as_dtype("float32")
    assert torch.equal(weights.tensor("norm.weight"), checkpoint.tensor("norm.weight"))
    assert caplog.text.count("cannot be used") == 1


def test_only_float_dtypes_can_be_asked_for(tiny_gguf, cache):
    with pytest.raises(ConfigError, match="'int8'; allowed: float32, bfloat16"):
        open_checkpoint(tiny_gguf, cache_dir=cache).as_dtype("int8")


def convert_in_a_process(path, cache, start, results):
    start.wait()
    conversions = []
    weights = open_checkpoint(path, cache_dir=cache).as_dtype("float32", lambda *report: conversions.append(report))
    results.put((bool(conversions), float(weights.tensor("embed.weight").sum())))


def test_two_processes_convert_once(tiny_gguf, cache):
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    arguments = (tiny_gguf, cache, start, results)
    workers = [context.Process(target=convert_in_a_process, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    outcomes = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(converted for converted, _ in outcomes) == [False, True]
    assert outcomes[0][1] == outcomes[1][1]
    assert len(files_of(cache)) == 1


def test_a_whole_file_appears_only_at_the_end(tmp_path):
    path = tmp_path / "deep" / "file"
    with whole_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    writing = whole_file(path)
    file = writing.__enter__()
    file.write(b"half")
    assert writing.__exit__(RuntimeError, RuntimeError("cut"), None) is False
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_every_flipped_bit_of_a_converted_file_is_noticed(tiny_gguf, cache, caplog):
    checkpoint = open_checkpoint(tiny_gguf, cache_dir=cache)
    checkpoint.as_dtype("float32")
    (name,) = files_of(cache)
    path = cache / "converted" / name
    whole = path.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    random = Random(0)
    places = [random.randrange(header_end) for _ in range(10)]
    places += [random.randrange(header_end, len(whole)) for _ in range(10)]
    for place in places:
        caplog.clear()
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << random.randrange(8)]) + whole[place + 1 :])
        checkpoint.as_dtype("float32")
        assert path.read_bytes() == whole
        assert caplog.text.count("converting again") == len(caplog.records) == 1
        checkpoint.as_dtype("float32")
        assert len(caplog.records) == 1


def test_a_sealed_file_with_other_tensors_is_converted_again(tiny_gguf, cache, caplog):
    checkpoint = open_checkpoint(tiny_gguf, cache_dir=cache)
    checkpoint.as_dtype("float32")
    (name,) = files_of(cache)
    path = cache / "converted" / name
    with sealed_file(path, checkpoint.fingerprint) as file:
        file.write(save({"norm.weight": torch.zeros(3)}))
    assert checkpoint.as_dtype("float32").has_tensor("layers.0.q.weight")
    assert caplog.text.count("holds other tensors than the model has") == 1


def test_weights_are_read_for_their_checksum_once_where_that_cannot_be_kept(tmp_path, caplog, monkeypatch):
    (tmp_path / "weights").write_bytes(b"values")
    (tmp_path / "blocked").write_text("a file where the cache folder should be")
    hashed = []
    whole = cache_module._hash
    monkeypatch.setattr(cache_module, "_hash", lambda *arguments: hashed.append(1) or whole(*arguments))
    sums = {cache_module.sha256_of(tmp_path / "weights", tmp_path / "blocked") for _ in range(4)}
    assert (len(sums), len(hashed), len(caplog.records)) == (1, 1, 1)
    (tmp_path / "weights").write_bytes(b"other values")
    sums.add(cache_module.sha256_of(tmp_path / "weights", tmp_path / "blocked"))
    assert (len(sums), len(hashed), len(caplog.records)) == (2, 2, 1)


@pytest.mark.parametrize("note", [b"", b"[" * 200_000, b"[]", b"{}", b'{"state": null}', b"\xff"])
def test_a_damaged_note_of_a_checksum_is_made_again(tmp_path, note):
    (tmp_path / "weights").write_bytes(b"values")
    expected = cache_module.sha256_of(tmp_path / "weights", tmp_path / "cache")
    (path,) = (tmp_path / "cache" / "sums").iterdir()
    whole = path.read_bytes()
    path.write_bytes(note)
    assert cache_module.sha256_of(tmp_path / "weights", tmp_path / "cache") == expected
    assert path.read_bytes() == whole
