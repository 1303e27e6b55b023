"""Documents say what the code does: their Python runs, their links lead somewhere, their commands exist."""

import re
import shlex
from pathlib import Path

import pytest

import foreword
from foreword.draft.registry import BUILT_IN
from tests.support import drafter_pages
from tests.support.tiny_chat import write_tiny_chat

ROOT = Path(__file__).parents[2]
BESIDE_CODE = (ROOT / "kernels" / "README.md", ROOT / "checkpoints" / "README.md")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *BESIDE_CODE])
MADE_BY_MAKE_DOCS = {ROOT / "docs" / "reference" / "cli.md"}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    return [text for name, text in _BLOCK.findall(path.read_text()) if name == language]


def with_python() -> list[Path]:
    return [page for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", with_python(), ids=lambda page: page.name)
def test_python_blocks_run_on_a_tiny_model(page, tmp_path, monkeypatch):
    tiny = write_tiny_chat(tmp_path / "model")

    def tiny_by_default(kind):
        """The page's own code, with a tiny model where it takes the default one."""

        class TinyByDefault(kind):
            def __init__(self, model=None, *args, **options):
                super().__init__(model or tiny, *args, runtime="torch", cache_dir=tmp_path / "cache", **options)

        return TinyByDefault

    for name in ("LLM", "AsyncLLM"):
        monkeypatch.setattr(foreword, name, tiny_by_default(getattr(foreword, name)))
    namespace: dict = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), namespace)


def test_the_readme_has_python_to_run():
    assert ROOT / "README.md" in with_python()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            file = (page.parent / target).resolve()
            assert file.exists() or file in MADE_BY_MAKE_DOCS, f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page):
    import typer

    from foreword.cli.main import app

    commands = typer.main.get_command(app).commands
    for line in "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words or not words[0].endswith("foreword"):
            continue
        assert words[1] in commands, f"{page.name}: {line}"
        known = {option for parameter in commands[words[1]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, f"{page.name}: {line}"


def test_make_targets_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"^make (\w+)", "\n".join(blocks(page, "sh")), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_what_documents_say_of_drafters_is_what_the_drafters_say():
    made = "run python -m tests.support.drafter_pages"
    for page in drafter_pages.marked_pages():
        assert page.read_text() == drafter_pages.with_table(page.read_text()), f"{page}: {made}"
        assert drafter_pages.summary_table() in page.read_text()
    assert drafter_pages.PAGE.read_text() == drafter_pages.page(), made
    assert re.findall(r"^\| `(\w+)`", drafter_pages.summary_table(), re.MULTILINE) == list(BUILT_IN)


def test_the_readme_is_short_and_narrow():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []
