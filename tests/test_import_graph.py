"""Imports between packages run one way: design page, section "The house". Read from the source, nothing is imported."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "foreword"

# What each package may import, besides itself.
_BASE = {"cache_folder", "config", "errors", "files", "progress", "sampling", "seal", "text_checks", "tree", "validate"}
_MODELS = _BASE | {"verify", "runtime", "checkpoint"}
_ENGINE = _MODELS | {"target", "draft"}
ALLOWED = {
    "cache_folder": set(),
    "config": {"errors", "validate"},
    "errors": set(),
    "files": set(),
    "progress": set(),
    "seal": {"errors", "files"},
    "text_checks": {"errors"},
    "validate": {"errors"},
    "sampling": {"config", "errors", "text_checks", "tree", "validate"},
    "tree": {"config", "errors", "sampling"},
    "verify": _BASE,
    "runtime": _BASE | {"verify"},
    "checkpoint": _BASE,
    "target": _MODELS,
    "draft": _MODELS | {"target"},
    "engine": _ENGINE,
    "adapt": _ENGINE | {"engine"},
    "train": _MODELS | {"target", "draft"},
    "export": _MODELS | {"target"},
    "integrations": _MODELS | {"target", "draft", "export"},
    "bench": _ENGINE | {"engine", "adapt"},
    "tune": _ENGINE | {"engine", "adapt", "bench"},
    "server": _ENGINE | {"engine", "adapt", "foreword"},
    "cli": _ENGINE | {"engine", "adapt", "bench", "tune", "train", "export", "integrations", "server", "foreword"},
    "__main__": {"cli"},
}
# Single modules that stand above their package: `train` and `export` may use the public LLM, never engine internals.
EXCEPTIONS = {("train", "foreword.engine.llm"), ("export", "foreword.engine.llm")}
FILES = sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


def imported_modules(path: Path) -> set[str]:
    """Modules of foreword that a file imports, also inside functions and for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: a relative import"
            found.add(node.module or "")
    return {module for module in found if module.split(".")[0] == "foreword"}


def package_of(module: str) -> str:
    """The package below foreword, "foreword" for foreword itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "foreword"


def violations(path: Path, root: Path = SRC) -> list[str]:
    own = path.relative_to(root).parts[0].removesuffix(".py")
    return [
        f"{own} imports {module}"
        for module in sorted(imported_modules(path))
        if package_of(module) not in ALLOWED[own] | {own} and (own, module) not in EXCEPTIONS
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_run_one_way(path):
    assert violations(path) == []


def test_the_graph_has_no_cycle_between_layers():
    layers = ["errors", "config", "verify", "runtime", "target", "draft", "engine", "adapt", "bench", "tune", "cli"]
    for low, high in ((a, b) for i, a in enumerate(layers) for b in layers[i + 1 :]):
        assert high not in ALLOWED[low], f"{low} may import {high}"


def test_the_check_sees_an_import_inside_a_function(tmp_path):
    (tmp_path / "tree").mkdir()
    bad = tmp_path / "tree" / "bad.py"
    bad.write_text("def f():\n    from foreword.engine.step import commit\n    return commit\n")
    assert violations(bad, tmp_path) == ["tree imports foreword.engine.step"]
