"""The documentation site: every page is reachable, generated pages hold what they promise, nothing is fetched at view."""

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest
import yaml

pytest.importorskip("mkdocs", reason="the documentation's tools are not installed")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings() -> dict:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(nav: list) -> list[str]:
    """Files that a navigation names."""
    found = []
    for entry in nav:
        (target,) = entry.values()
        found += pages(target) if isinstance(target, list) else [target]
    return found


def test_every_page_is_in_the_navigation_once():
    listed = pages(settings()["nav"])
    made = {hooks().CLI_PAGE, *hooks().ROOT_PAGES}
    assert len(listed) == len(set(listed))
    assert set(listed) == made | {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def test_nothing_is_fetched_when_a_page_is_read():
    found = settings()
    assert found["theme"]["font"] is False
    assert "extra_javascript" not in found
    assert "extra_css" not in found


def test_the_reference_of_the_command_line_has_every_command_and_option():
    import typer

    from foreword.cli.main import app

    text = hooks().cli_reference()
    assert str(ROOT) not in text
    for name, command in typer.main.get_command(app).commands.items():
        section = text.split(f"## `foreword {name}`\n")[1].split("\n## ")[0]
        assert {option for parameter in command.params for option in parameter.opts if option.startswith("--")} <= set(
            re.findall(r"--[\w-]+", section)
        ), name


def test_every_export_has_a_section_in_the_reference(monkeypatch):
    import foreword

    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    monkeypatch.setattr(foreword, "__all__", [*foreword.__all__, "Later"])
    monkeypatch.setitem(foreword._HOMES, "Later", "foreword.later")
    whole = page + hooks().other_exports(page)
    for name, home in foreword._HOMES.items():
        assert home == "foreword.errors" or re.search(rf"^::: foreword\S*\.{name}$", whole, re.MULTILINE), name
    assert "::: foreword.Later\n" in whole
    assert whole.count(".LLM\n") == 1
    assert "::: foreword.errors\n" in whole


def test_links_out_of_the_docs_become_pages_or_text():
    inside = hooks()._inside
    link = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
    for text, folder, expected in (
        ("[log](../CHANGELOG.md)", "", "[log](changelog.md)"),
        ("[log](../../CHANGELOG.md#a)", "guides", "[log](../changelog.md#a)"),
        ("[step](../src/foreword/engine/step.py)", "", "step"),
        ("[tune](tune.md)", "guides", "[tune](tune.md)"),
        ("[here](#below)", "guides", "[here](#below)"),
    ):
        assert inside(link.match(text), folder) == expected


def test_comments_beside_fields_are_their_descriptions(tmp_path):
    griffe = pytest.importorskip("griffe")
    source = """
        from dataclasses import dataclass

        @dataclass
        class Options:
            width: int = 1  # candidates per level
            # Of a chain,
            depth: int = 2  # most tokens
            told: str = "a"
            '''In its own words.'''
            bare: bool = True
        """
    (tmp_path / "options.py").write_text(textwrap.dedent(source))
    extensions = griffe.load_extensions(str(DOCS / "field_comments.py"))
    found = griffe.load("options", search_paths=[str(tmp_path)], extensions=extensions)["Options"]
    said = {name: found[name].docstring and found[name].docstring.value for name in ("width", "depth", "told", "bare")}
    assert said == {
        "width": "Candidates per level.",
        "depth": "Of a chain, most tokens.",
        "told": "In its own words.",
        "bare": None,
    }
