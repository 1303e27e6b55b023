"""What the guides tell newcomers to write is written here, literally, and its tests pass."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import foreword
from foreword.checkpoint.families import FAMILIES, Family
from foreword.draft import registry
from tests.support.guides import write_files, write_package
from tests.support.tiny_chat import write_tiny_chat

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


@pytest.fixture
def tiny_default(tmp_path, monkeypatch):
    """`LLM()` is a tiny model."""
    tiny = foreword.load_model(write_tiny_chat(tmp_path / "model"), runtime="torch", cache_dir=tmp_path / "cache")

    class TinyByDefault(foreword.LLM):
        def __init__(self, model=None, *args, **options):
            super().__init__(model or tiny, *args, **options)

    monkeypatch.setattr(foreword, "LLM", TinyByDefault)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder from which packages can be imported, for one test."""
    before = set(sys.modules)
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(
            getattr(sys.modules[name], "__file__", None) or getattr(sys.modules[name], "__path__", "")
        ):
            del sys.modules[name]
    registry._places.cache_clear()


def functions_in(path: Path) -> list:
    """The test functions of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [value for name, value in vars(module).items() if name.startswith("test_")]


@pytest.mark.usefixtures("tiny_default")
def test_add_a_drafter(packages):
    files = write_package(GUIDES / "add-a-drafter.md", packages)
    registry._places.cache_clear()
    assert set(files) == {"my_drafters/bigram.py", "tests/test_bigram.py"}
    assert registry.drafter_names()[-1] == "bigram"
    found = functions_in(files["tests/test_bigram.py"])
    assert len(found) == 2
    for test in found:
        test()
    assert registry.drafter_type("bigram").summary.startswith("copies what followed")


def test_add_a_model(packages, tmp_path, monkeypatch):
    guide = GUIDES / "add-a-model.md"
    files = write_files(guide, packages)
    rows = re.findall(r"^```py\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    family = eval("{" + "".join(rows) + "}", {"Family": Family})
    assert list(family) == ["nimbus"]
    for name, row in family.items():
        monkeypatch.setitem(FAMILIES, name, row)
    found = functions_in(files["tests/unit/test_nimbus.py"])
    assert len(found) == 2
    for number, test in enumerate(found):
        (tmp_path / f"{number}").mkdir()
        test(tmp_path / f"{number}")
