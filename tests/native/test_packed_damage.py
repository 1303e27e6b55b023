"""Packed weights that are damaged, incomplete or another model's are packed again: never other logits, never an error."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foreword import cache_folder
from foreword.errors import CheckpointError
from foreword.runtime import native_weights
from foreword.runtime.base import Need
from foreword.runtime.native_runtime import NativeRuntime
from foreword.runtime.packed_file import read_header
from foreword.seal import seal_path, sealed_file
from tests.native.models import LLAMA, QWEN3, RandomWeights, chain

WEIGHTS = RandomWeights(LLAMA)


def logits(cache_dir: Path) -> torch.Tensor:
    decoder = NativeRuntime(threads=1, cache_dir=cache_dir).decoder(LLAMA, WEIGHTS)
    cache = decoder.new_cache()
    out = decoder.forward(chain([1, 2, 3], 0, cache.open(64)), cache, Need(logits=range(3))).logits
    assert out is not None
    return out


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, torch.Tensor]:
    """A cache folder with the file, its bytes, and the model's output."""
    folder = tmp_path_factory.mktemp("packed")
    expected = logits(folder)
    (path,) = (folder / "native").glob("*.fwk")
    return path, path.read_bytes(), expected


def check_packed_again(packed: tuple[Path, bytes, torch.Tensor], caplog: pytest.LogCaptureFixture) -> None:
    path, whole, expected = packed
    caplog.clear()
    assert torch.equal(logits(path.parents[1]), expected)
    assert caplog.text.count("packing again") == len(caplog.records) == 1, caplog.text
    assert path.read_bytes() == whole
    caplog.clear()
    assert torch.equal(logits(path.parents[1]), expected)
    assert not caplog.records


def test_every_flipped_bit_of_header_and_payload_is_noticed(
    packed: tuple[Path, bytes, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    path, whole, _ = packed
    header, random_ = read_header(path), random.Random(0)
    length = 8 + int.from_bytes(whole[:8], "little")
    places = [random_.randrange(length) for _ in range(25)]
    places += [random_.randrange(place["tiles"], place["scales"]) for place in header.matrices.values()]
    places += list(header.vectors.values())
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << random_.randrange(8)
        path.write_bytes(data)
        check_packed_again(packed, caplog)


def sealed_with(path: Path, whole: bytes, change: Callable[[dict[str, Any]], object]) -> None:
    """The file with another header and a seal that fits: as a version with a fault would have written it."""
    length = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:length])
    change(header)
    raw = json.dumps(header).encode()
    with sealed_file(path, WEIGHTS.fingerprint) as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.seek(max(length, 8 + len(raw)))
        file.write(whole[max(length, 8 + len(raw)) :])


def test_every_missing_part_is_noticed_at_load(
    packed: tuple[Path, bytes, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    path, whole, _ = packed
    header = read_header(path)
    for part, names in (("vectors", list(header.vectors)), ("matrices", list(header.matrices))):
        for name in names:
            sealed_with(path, whole, lambda header, part=part, name=name: header[part].pop(name))
            check_packed_again(packed, caplog)


def _changed(name: str, key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda header: header["matrices"][name].update({key: value})


@pytest.mark.parametrize(
    "change",
    [
        _changed("layers.0.qkv", "width", 64),
        _changed("layers.0.qkv", "num_tiles", 9),
        _changed("layers.1.down", "bits", 4),
        _changed("layers.1.o", "bias", 4096),
        _changed("layers.1.o", "tiles", -5),
        _changed("layers.1.o", "tiles", 1 << 40),
        _changed("layers.1.o", "scales", "text"),
        _changed("head", "num_tiles", 10**30),
        lambda header: header["vectors"].update({"norm": 1 << 50}),
        lambda header: header["vectors"].update({"embed": None}),
        lambda header: header["vectors"].update({"layers.0.attn_norm": 3}),
        lambda header: header.update({"vectors": [1]}),
        lambda header: header.update({"matrices": None}),
        lambda header: header.update({"fingerprint": "another"}),
        lambda header: header.update({"hot_begin": -1}),
        lambda header: header.update({"version": 99}),
    ],
)
def test_a_sealed_file_that_makes_no_sense_is_packed_again(
    packed: tuple[Path, bytes, torch.Tensor],
    caplog: pytest.LogCaptureFixture,
    change: Callable[[dict[str, Any]], object],
) -> None:
    path, whole, _ = packed
    sealed_with(path, whole, change)
    check_packed_again(packed, caplog)


def test_a_file_without_a_seal_or_of_another_model_is_packed_again(
    packed: tuple[Path, bytes, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    path, whole, _ = packed
    seal_path(path).unlink()
    check_packed_again(packed, caplog)
    with sealed_file(path, "another model") as file:
        file.write(whole)
    check_packed_again(packed, caplog)


@pytest.mark.parametrize(
    ("spec", "name"), [(LLAMA, "layers.1.attn_norm"), (LLAMA, "layers.0.mlp_norm"), (QWEN3, "layers.1.k_norm")]
)
def test_a_model_without_a_norm_is_refused(tmp_path: Path, spec: Any, name: str) -> None:
    weights = RandomWeights(spec)
    del weights.tensors[f"{name}.weight"]
    with pytest.raises(CheckpointError, match=rf"lacks the tensors {name}\.weight"):
        NativeRuntime(threads=1, cache_dir=tmp_path).decoder(spec, weights)


def test_a_norm_that_the_spec_does_not_have_is_not_needed(tmp_path: Path) -> None:
    spec = replace(LLAMA, has_first_norm=False)
    weights = RandomWeights(spec)
    del weights.tensors["layers.0.attn_norm.weight"]
    NativeRuntime(threads=1, cache_dir=tmp_path).decoder(spec, weights)


def test_a_cache_that_can_only_be_read_is_told_once_and_used_as_it_is(
    packed: tuple[Path, bytes, torch.Tensor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_folder, "_told", set())
    monkeypatch.setattr(native_weights, "locked", refuse)
    monkeypatch.setattr(native_weights, "sealed_file", refuse)
    assert torch.equal(logits(packed[0].parents[1]), packed[2])
    assert not caplog.records
    for _ in range(2):
        assert torch.equal(logits(tmp_path), packed[2])
    assert [record.message for record in caplog.records] == [
        f"the cache folder {tmp_path} cannot be used ([Errno 13] Permission denied): what is kept there is made again at "
        "every load; set FOREWORD_CACHE to a folder that can be written"
    ]
