"""Where the cache is, and that nothing needs one."""

import json
import os
import stat
from pathlib import Path

import pytest

from foreword import cache_folder as cache_folder_module
from foreword.adapt import timing
from foreword.adapt.cost_model import PassCosts
from foreword.adapt.timing import VERSION, kept_costs
from foreword.cache_folder import cache_folder
from foreword.checkpoint import open_checkpoint
from foreword.checkpoint.cache import sha256_of
from foreword.target.load_model import load_model
from tests.support.tiny_files import GGUF_SIZES, write_gguf
from tests.support.tiny_models import TinyWeights, tiny_spec
from tests.support.toy_decoder import ToyDecoder


@pytest.fixture(autouse=True)
def nothing_was_told(monkeypatch):
    monkeypatch.setattr(cache_folder_module, "_told", set())


def test_it_is_the_argument_then_the_variable_then_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(tmp_path / "argument") == tmp_path / "argument"
    assert cache_folder() == tmp_path / "variable"
    monkeypatch.delenv("FOREWORD_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "foreword"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/foreword"),
        ("linux", {"XDG_CACHE_HOME": "~/xdg"}, "home/xdg/foreword"),
        ("linux", {"FOREWORD_CACHE": "~/own"}, "home/own"),
        ("darwin", {}, "home/Library/Caches/foreword"),
        ("win32", {}, "home/AppData/Local/foreword"),
        ("win32", {"LOCALAPPDATA": "{home}/local"}, "home/local/foreword"),
    ],
)
def test_each_platform_has_its_place(tmp_path, monkeypatch, platform, variables, expected):
    for name in ("FOREWORD_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("{home}", str(tmp_path / "home")))
    monkeypatch.setattr(cache_folder_module.sys, "platform", platform)
    assert cache_folder() == tmp_path / expected


def without_home(monkeypatch, temporary: Path) -> None:
    """As in a container that runs under a number of its own."""

    def refuse(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("FOREWORD_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    monkeypatch.setattr(Path, "expanduser", refuse)
    monkeypatch.setattr(cache_folder_module.tempfile, "tempdir", str(temporary))


@pytest.mark.parametrize("given", [None, "~/models"])
def test_without_a_home_it_is_among_the_temporary_files_and_told_once(tmp_path, monkeypatch, caplog, given):
    without_home(monkeypatch, tmp_path)
    folder = cache_folder(given)
    assert cache_folder(given) == folder
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(caplog.records) == 1
    assert str(folder) in caplog.text
    assert "set FOREWORD_CACHE" in caplog.text


def test_a_temporary_folder_that_others_can_write_to_is_not_trusted(tmp_path, monkeypatch):
    without_home(monkeypatch, tmp_path)
    folder = cache_folder()
    folder.chmod(0o777)
    other = cache_folder()
    assert other != folder
    assert stat.S_IMODE(other.stat().st_mode) == 0o700
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert cache_folder() not in (folder, tmp_path)


@pytest.mark.parametrize("runtime", ["torch", "native"])
def test_a_folder_that_may_not_be_searched_is_gone_past_with_one_line(tmp_path, monkeypatch, caplog, runtime):
    """Whatever is looked for below it is refused, as where the permission to search is missing."""
    path = write_gguf(tmp_path / "tiny.gguf", TinyWeights(tiny_spec(**GGUF_SIZES)))
    cache = tmp_path / "unsearchable"
    for name in ("stat", "mkdir", "open"):
        monkeypatch.setattr(Path, name, _refused_below(cache, getattr(Path, name)))
    loaded = load_model(path, runtime=runtime, cache_dir=cache)
    assert loaded.decoder is not None
    sha256_of(path, cache)
    told = [record.message for record in caplog.records]
    assert len(told) == 1, told
    assert f"the cache folder {cache} cannot be used" in told[0]
    assert open_checkpoint(path, cache_dir=cache).fingerprint


def _refused_below(folder: Path, operation):
    def refuse(self: Path, *arguments, **options):
        if folder in (self, *self.parents):
            raise PermissionError(13, "Permission denied", os.fspath(self))
        return operation(self, *arguments, **options)

    return refuse


@pytest.mark.parametrize(
    "damage",
    [
        {"widths": [1, 2], "base": [0.1], "slope": [0.0]},
        {"widths": [2, 1], "base": [0.1, 0.2], "slope": [0.0, 0.0]},
        {"widths": [1.5, 2], "base": [0.1, 0.2], "slope": [0.0, 0.0]},
        {"widths": ["1"], "base": [0.1], "slope": [0.0]},
        {"widths": [], "base": [], "slope": []},
        {"widths": [1], "base": ["0.1"], "slope": [0.0]},
        {"widths": [1], "base": [-0.1], "slope": [0.0]},
        {"widths": [1], "base": [float("nan")], "slope": [0.0]},
        {"widths": [1], "base": [float("inf")], "slope": [0.0]},
        {"widths": [1], "base": [0.1], "slope": [None]},
        {"widths": 5, "base": [0.1], "slope": [0.0]},
        {"widths": [1], "base": [0.1], "slope": [0.0], "more": 1},
    ],
)
def test_damaged_pass_costs_are_measured_again(tmp_path, monkeypatch, damage):
    path = tmp_path / "costs.json"
    measured = PassCosts([1, 2], [0.1, 0.2], [0.0, 0.0])
    monkeypatch.setattr(timing, "measure_costs", lambda _: measured)
    monkeypatch.setattr(timing, "_agree", lambda *_: True)
    path.write_text(json.dumps({"version": VERSION, **damage}))
    assert kept_costs(path, ToyDecoder()) is measured
    assert kept_costs(path, ToyDecoder()) == measured  # as kept
    path.write_text("[" * 200_000)
    assert kept_costs(path, ToyDecoder()) is measured
