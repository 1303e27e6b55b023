"""Seals: a file of the cache that is not the one that was written is noticed, and an untouched one is not read again."""

import json
import os
from pathlib import Path

import pytest

from foreword import seal as seal_module
from foreword.errors import CheckpointError
from foreword.seal import check_sealed, discard, is_sealed, seal_path, sealed_file

HEADER, PAYLOAD = b"header: 12 bytes", bytes(range(256)) * 40


def made(path: Path) -> Path:
    """A header that is written last into the room left for it, a gap, and the rest."""
    with sealed_file(path, "source") as file:
        file.seek(64)
        file.write(PAYLOAD[:100])
        file.write(memoryview(PAYLOAD)[100:])
        file.seek(0)
        file.write(HEADER)
    return path


def touched_back(path: Path, data: bytes) -> None:
    """Change the bytes as a failing disk does: size, times and inode stay, so that the seal's state must be made up."""
    path.write_bytes(data)
    seal = json.loads(seal_path(path).read_text())
    status = path.stat()
    seal["state"] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    seal_path(path).write_text(json.dumps(seal))


def test_what_was_written_is_there(tmp_path):
    path = made(tmp_path / "f")
    check_sealed(path, "source")
    check_sealed(path, None, whole=True)
    assert path.read_bytes() == HEADER.ljust(64, b"\0") + PAYLOAD


@pytest.mark.parametrize("at", [0, 7, 15, 64, 163, 164, 64 + len(PAYLOAD) - 1])
def test_every_changed_byte_is_noticed(tmp_path, at):
    path = made(tmp_path / "f")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged: its bytes"):
        check_sealed(path, "source")


def test_damage_that_leaves_no_trace_is_found_in_the_header_at_once_and_else_when_all_is_compared(tmp_path):
    path = made(tmp_path / "f")
    data = path.read_bytes()
    touched_back(path, b"x" + data[1:])
    assert not is_sealed(path, "source")
    touched_back(path, data[:-1] + b"x")
    assert is_sealed(path, "source")
    with pytest.raises(CheckpointError, match="is damaged"):
        check_sealed(path, "source", whole=True)


@pytest.mark.parametrize("data", [b"", HEADER, b"long" * 10000])
def test_another_length_is_noticed(tmp_path, data):
    path = made(tmp_path / "f")
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="cut short or has grown"):
        check_sealed(path, "source")


def test_another_source_is_noticed(tmp_path):
    with pytest.raises(CheckpointError, match="another model"):
        check_sealed(made(tmp_path / "f"), "another")


def seal_with(path: Path, **changes: object) -> None:
    seal_path(path).write_text(json.dumps(json.loads(seal_path(path).read_text()) | changes))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: seal_path(path).unlink(),
        lambda path: seal_path(path).write_bytes(b""),
        lambda path: seal_path(path).write_text("[" * 100_000),
        lambda path: seal_path(path).write_text("[]"),
        lambda path: seal_with(path, version=2),
        lambda path: seal_with(path, pieces=[]),
        lambda path: seal_with(path, pieces=None),
        lambda path: seal_with(path, pieces=[[0, "16", 5]]),
        lambda path: seal_with(path, pieces=[[0, 1 << 60, 5]]),
        lambda path: seal_with(path, pieces=[[-5, 4, 5]]),
        lambda path: seal_with(path, unknown=1),
        lambda path: seal_with(path, size="16"),
        lambda path: path.unlink(),
    ],
)
def test_a_damaged_seal_is_no_seal(tmp_path, damage):
    path = made(tmp_path / "f")
    damage(path)
    assert not is_sealed(path, "source")


def test_a_file_that_was_not_touched_is_not_read_again(tmp_path, monkeypatch):
    path = made(tmp_path / "f")
    read = []
    check_sealed(path, "source", compared=read.append)
    assert sum(read) == len(HEADER)
    os.utime(path, (1, 1))
    check_sealed(path, "source", compared=read.append)
    assert sum(read) == 2 * len(HEADER) + len(PAYLOAD)
    check_sealed(path, "source", compared=read.append)  # found whole: its new times are remembered
    assert sum(read) == 3 * len(HEADER) + len(PAYLOAD)
    os.utime(path, (2, 2))

    def refuse(*_: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(seal_module, "write_whole", refuse)
    check_sealed(path, "source")


def test_pieces_end_so_that_a_large_file_is_compared_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(seal_module, "_MOST_BYTES", 1000)
    path = tmp_path / "f"
    with sealed_file(path, "source") as file:
        file.write(HEADER)
        file.end_piece()
        for start in range(0, len(PAYLOAD), 100):
            file.write(PAYLOAD[start : start + 100])
    pieces = json.loads(seal_path(path).read_text())["pieces"]
    assert [piece[:2] for piece in pieces[:3]] == [[0, 16], [16, 1016], [1016, 2016]]
    check_sealed(path, "source", whole=True)


def test_a_cut_write_leaves_neither_file_nor_seal(tmp_path):
    def cut() -> None:
        with sealed_file(tmp_path / "f", "source") as file:
            file.write(HEADER)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        cut()
    assert list(tmp_path.iterdir()) == []


def test_discarding(tmp_path):
    discard(made(tmp_path / "f"))
    discard(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []
