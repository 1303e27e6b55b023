"""Where trained drafters are found: the user's own, the source tree, the package of data; shipped files are checked."""

import hashlib
import json
from pathlib import Path

import pytest

from foreword.checkpoint import trained_drafters
from foreword.checkpoint.trained_drafters import PACKAGE, SUMS, trained_drafter
from foreword.errors import CheckpointError

ROOT = Path(__file__).parents[2]
FINGERPRINT = "f" * 64


def put(shelf: Path, name: str, method: str = "ngram_lm", checked: bool = False) -> Path:
    folder = shelf / name
    folder.mkdir(parents=True)
    card = {"foreword": {"method": method, "target_fingerprint": FINGERPRINT}}
    (folder / "config.json").write_text(json.dumps(card))
    (folder / "model.safetensors").write_bytes(name.encode() * 100)
    if checked:
        files = [folder / "config.json", folder / "model.safetensors"]
        sums = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.relative_to(shelf)}" for f in files]
        (shelf / SUMS).write_text("\n".join(sums) + "\n")
    return folder


@pytest.fixture
def places(tmp_path, own_cache, monkeypatch):
    """No source tree, and a folder for packages on the path."""
    monkeypatch.setattr(trained_drafters, "_SOURCE", tmp_path / "no source")
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return {"cache": tmp_path / "cache" / "checkpoints", "package": site / PACKAGE}


def test_without_a_source_tree_the_package_of_data_is_found(places):
    assert trained_drafter("ngram_lm", FINGERPRINT) is None
    (places["package"]).mkdir()
    (places["package"] / "__init__.py").write_text("raise RuntimeError('located, never imported')")
    folder = put(places["package"], "table", checked=True)
    assert trained_drafter("ngram_lm", FINGERPRINT) == folder
    assert trained_drafter("ngram_lm", "0" * 64) is None
    assert trained_drafter("eagle3", FINGERPRINT) is None


def test_a_drafter_of_the_users_own_wins_and_needs_no_checksums(places):
    put(places["package"], "shipped", "eagle", checked=True)
    own = put(places["cache"], "own", "eagle")
    assert trained_drafter("eagle", FINGERPRINT) == trained_drafter("eagle2", FINGERPRINT) == own


def test_the_source_tree_wins_over_the_package(places, tmp_path, monkeypatch):
    put(places["package"], "shipped", checked=True)
    monkeypatch.setattr(trained_drafters, "_SOURCE", tmp_path / "source")
    source = put(tmp_path / "source" / "checkpoints", "mine")
    assert trained_drafter("ngram_lm", FINGERPRINT) == source


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_shipped_file_is_refused_by_name(places, damage):
    weights = put(places["package"], "table", checked=True) / "model.safetensors"
    assert trained_drafter("ngram_lm", FINGERPRINT)
    if damage == "changed":
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    else:
        weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not the file that was shipped"):
        trained_drafter("ngram_lm", FINGERPRINT)


def test_other_drafters_of_the_shelf_need_not_be_whole(places):
    put(places["package"], "other", "medusa")
    folder = put(places["package"], "table", checked=True)
    sums = places["package"] / SUMS
    sums.write_text(sums.read_text() + f"{'0' * 64}  other/model.safetensors\n")
    assert trained_drafter("ngram_lm", FINGERPRINT) == folder


def test_the_checksums_in_the_source_tree_are_those_of_its_files():
    shelf = ROOT / "checkpoints"
    lines = dict(reversed(line.split("  ")) for line in (shelf / SUMS).read_text().splitlines())
    files = sorted([*shelf.glob("*/config.json"), *shelf.glob("*/model.safetensors")])
    found = {str(f.relative_to(shelf)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
    assert lines == found, "in checkpoints/: sha256sum */config.json */model.safetensors > SHA256SUMS"


def test_the_package_of_data_takes_every_drafter_of_the_source_tree():
    import tomllib

    settings = tomllib.loads((ROOT / "checkpoints" / "pyproject.toml").read_text())
    globs = settings["tool"]["setuptools"]["package-data"]["foreword_drafters"]
    packed = {file for pattern in globs for file in (ROOT / "checkpoints").glob(pattern)}
    assert {card.parent / "model.safetensors" for card in (ROOT / "checkpoints").glob("*/config.json")} <= packed
    assert ROOT / "checkpoints" / SUMS in packed


def test_doctor_names_the_drafters_and_advises_to_install_them(places, tmp_path, monkeypatch):
    from foreword.bench.machine_facts import machine_facts

    without = machine_facts()
    assert without["trained_drafters"] == []
    assert any("foreword-drafters" in line for line in without["advice"])
    put(places["package"], "table", checked=True)
    found = machine_facts()
    assert found["trained_drafters"] == ["table"]
    assert not any("foreword-drafters" in line for line in found["advice"])
