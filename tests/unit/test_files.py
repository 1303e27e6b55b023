"""Whole files: their permissions are those of any other file, and nothing half-written is left."""

import os
import stat
import sys
import time

import pytest

from foreword.files import PART_SUFFIX, locked, sweep_folder, sweep_parts, whole_file, write_whole


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions there are not those of a umask")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_file_may_be_read_by_whom_the_umask_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "deep" / "ours", "text")
        (tmp_path / "theirs").write_text("text")
    finally:
        os.umask(before)
    assert mode(tmp_path / "deep" / "ours") == mode(tmp_path / "theirs") == 0o666 & ~umask


@pytest.mark.skipif(sys.platform == "win32", reason="permissions there are not those of a umask")
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path):
    path = tmp_path / "secret"
    write_whole(path, "one")
    path.chmod(0o640)
    write_whole(path, "two")
    assert (path.read_text(), mode(path)) == ("two", 0o640)


def test_what_fails_leaves_the_old_file_and_no_part(tmp_path):
    path = tmp_path / "kept"
    write_whole(path, "old")

    def write_half() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            assert list(tmp_path.glob(f"kept.*{PART_SUFFIX}"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    assert path.read_text() == "old"
    (tmp_path / f"kept.1{PART_SUFFIX}").write_text("")
    sweep_parts(path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_parts_of_the_killed_are_swept_and_those_of_the_living_stay(tmp_path):
    def part(name: str, age_s: float = 0.0):
        path = tmp_path / f"{name}.00ff{PART_SUFFIX}"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    with locked(tmp_path / "killed.fwk"):
        pass
    killed, old, young = part("killed.fwk"), part("old.json", 25 * 3600), part("young.json")
    with locked(tmp_path / "living.fwk"):
        living = part("living.fwk", 25 * 3600)
        assert sweep_folder(tmp_path) == 2
        assert not killed.exists()
        assert not old.exists()
        assert young.exists()
        assert living.exists()
    assert sweep_folder(tmp_path) == 1
    assert sweep_folder(tmp_path / "not there") == 0
