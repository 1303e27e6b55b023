"""What `foreword` exports: what is documented, found lazily, and light to import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import foreword

API_PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"


def test_every_export_is_documented_and_the_other_way_round():
    documented = re.findall(r"^\| `(\w+)` \|", API_PAGE.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(foreword.__all__)
    assert len(documented) == len(set(documented))


@pytest.mark.parametrize("name", foreword.__all__)
def test_every_export_is_there(name):
    value = getattr(foreword, name)
    assert name == "__version__" or value.__name__ == name
    assert name in dir(foreword)


def test_a_wrong_name_is_an_attribute_error_that_lists_the_right_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'LMM'; it has: .*LLM"):
        foreword.LMM  # noqa: B018


def test_the_version_is_that_of_the_project():
    pyproject = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    changelog = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    version = re.search(r'^version = "(.+)"', pyproject, re.MULTILINE).group(1)
    assert foreword.__version__ == version
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE).group(1) == version


@pytest.mark.parametrize("module", ["foreword", "foreword.cli.main", "foreword.sampling.params"])
def test_the_import_is_light(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'numpy', 'transformers', 'gguf') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
