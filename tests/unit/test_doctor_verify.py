"""`foreword doctor --verify`: all of the cache is compared; what is damaged is named, removed and made again."""

import json

import pytest

from foreword.bench import cache_check
from foreword.bench.cache_check import check_cache
from foreword.checkpoint import open_checkpoint
from foreword.checkpoint.cache import sha256_of
from foreword.checkpoint.default_model import default_model_path
from foreword.cli.main import main
from foreword.progress import silent
from foreword.seal import seal_path
from tests.support.tiny_files import GGUF_SIZES, write_gguf
from tests.support.tiny_models import TinyWeights, tiny_spec


@pytest.fixture
def cache(tmp_path, own_cache):
    """A cache with one converted model, and what opens it."""
    write_gguf(tmp_path / "tiny.gguf", TinyWeights(tiny_spec(**GGUF_SIZES)))
    open_checkpoint(tmp_path / "tiny.gguf").as_dtype("float32")
    return tmp_path / "cache"


def damage_without_a_trace(path) -> None:
    """As a failing disk does it: what the system says of the file is what its seal says."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    seal, status = json.loads(seal_path(path).read_text()), path.stat()
    seal["state"] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    seal_path(path).write_text(json.dumps(seal))


def test_a_whole_cache(cache, capsys):
    assert main(["doctor", "--verify"]) == 0
    assert "cache: 1 file of" in capsys.readouterr().out
    assert main(["doctor", "--verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cache_check"]
    assert (found["num_files"], found["damaged"], found["num_leftovers"]) == (1, [], 0)
    (path,) = (cache / "converted").glob("*.safetensors")
    assert found["num_bytes"] == path.stat().st_size


def test_damage_that_no_load_sees_is_found_and_removed(cache, capsys, tmp_path):
    (path,) = (cache / "converted").glob("*.safetensors")
    whole = path.read_bytes()
    damage_without_a_trace(path)
    open_checkpoint(tmp_path / "tiny.gguf").as_dtype("float32")
    assert path.read_bytes() != whole
    assert main(["doctor", "--verify"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "1 is damaged" in out
    assert "removed; it is made again when it is next needed" in out
    open_checkpoint(tmp_path / "tiny.gguf").as_dtype("float32")
    assert path.read_bytes() == whole
    assert main(["doctor", "--verify"]) == 0


def test_leftovers_are_removed(cache):
    (path,) = (cache / "converted").glob("*.safetensors")
    seal_path(cache / "converted" / "gone.safetensors").write_text("{}")
    path.with_name(f"{path.name}.00ff.part").write_bytes(b"half")  # its lock is free
    assert check_cache(cache, silent).num_leftovers == 2
    assert check_cache(cache, silent).num_leftovers == 0


def test_a_damaged_default_model_is_removed(cache, monkeypatch):
    path = default_model_path(cache)
    path.parent.mkdir()
    path.write_bytes(b"the model")
    sha256 = sha256_of(path, cache)
    monkeypatch.setattr(cache_check, "DEFAULT_MODEL", type("Model", (), {"sha256": sha256}))
    reports = []
    assert check_cache(cache, lambda *report: reports.append(report)).damaged == []
    assert reports[-1][1] == reports[-1][2]
    monkeypatch.setattr(cache_check, "DEFAULT_MODEL", type("Model", (), {"sha256": "0" * 64}))
    (damaged,) = check_cache(cache, silent).damaged
    assert f"not {'0' * 64}" in damaged.problem
    assert not path.exists()
