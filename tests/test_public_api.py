"""What `foreword` exports: what is documented, found lazily, and light to import."""

import builtins
import inspect
import re
import subprocess
import sys
import typing
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
    if inspect.isclass(value) or inspect.isfunction(value):  # and not the name of a type of several parts
        assert value.__name__ == name
    assert name in dir(foreword)


_ERROR = re.compile(r"\b[A-Z]\w*Error\b")
# Told apart from a type of foreword's: parts of the machine, only to be looked at.
_INTERNAL = {"Engine", "PackedBatch", "PassOutput", "Ask", "Answers", "DraftMode", "Sampler", "Verdict", "Warp"}
_INTERNAL |= {"ModelSource", "RuntimeChoice", "Decoder", "Runtime", "Vocabulary", "InputThreads", "EngineLoop"}
_INTERNAL |= {"AdoptedModel", "Checkpoint", "PreparedPrompt", "TextStream"}
_INTERNAL |= {"DrafterOptions", "DrafterSettings", "CascadeOptions"}  # of a drafter's own file


def public_callables(value):
    """A function or a class, with its public methods and the types of its fields and properties."""
    yield value
    if not inspect.isclass(value):
        return
    for name, member in inspect.getmembers(value):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, property) and member.fget is not None:
            yield member.fget
        elif inspect.isfunction(member) or inspect.ismethod(member):
            yield member


def named_types(annotation):
    """Classes of foreword that an annotation names, however deep."""
    if inspect.isclass(annotation) and annotation.__module__.startswith("foreword"):
        yield annotation.__name__
    for inner in typing.get_args(annotation):
        if not isinstance(inner, list):
            yield from named_types(inner)
        else:
            for one in inner:
                yield from named_types(one)


def public_names_needed(value):
    """What a user meets who reads the signatures and docstrings of a public class: types, and errors by name."""
    for thing in public_callables(value):
        try:
            hints = typing.get_type_hints(thing, vars(foreword) | vars(typing))
        except NameError:  # imported for type checking alone
            hints = {}
        for name, hint in hints.items():
            if not name.startswith("_"):
                yield from named_types(hint)
        yield from _ERROR.findall(thing.__doc__ or "")


@pytest.mark.parametrize("name", [name for name in foreword.__all__ if name != "__version__"])
def test_what_a_public_name_speaks_of_is_exported(name):
    """Every type in a signature or a field, and every error that a docstring names."""
    value = getattr(foreword, name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    needed = set(public_names_needed(value)) - _INTERNAL - set(dir(builtins))
    assert needed <= set(foreword.__all__), f"{name} names {sorted(needed - set(foreword.__all__))}"


def test_the_walk_sees_types_and_errors():
    needed = set(public_names_needed(foreword.LLM))
    assert {"SamplingParams", "DraftingParams", "Result", "Piece", "EngineSnapshot", "QueueFullError"} <= needed
    assert {"RequestStats", "TokenLogprob"} <= set(public_names_needed(foreword.Result))


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
