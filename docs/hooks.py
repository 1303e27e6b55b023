"""Hooks of the documentation site: pages that are made from elsewhere in the repository, and links that leave docs/.

The command line's reference is what typer writes from the commands themselves, so it cannot be out of date.
"""

import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
CLI_PAGE, API_PAGE = "reference/cli.md", "reference/api.md"
ROOT_PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "references.md": "REFERENCES.md"}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    files.append(File.generated(config, CLI_PAGE, content=cli_reference()))
    for page, source in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_LINK.sub(_from_docs, text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that leave docs/ go to a generated page where there is one; the others keep their text alone."""
    if page.file.src_uri == API_PAGE:
        markdown += other_exports(markdown)
    folder = posixpath.dirname(page.file.src_uri)
    return _LINK.sub(lambda link: _inside(link, folder), markdown)


def cli_reference() -> str:
    """All commands and options as Markdown."""
    command = [sys.executable, "-m", "typer", "foreword.cli.main", "utils", "docs", "--name", "foreword"]
    done = subprocess.run([*command, "--title", "Command line"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.replace("$ foreword", "foreword").replace("```console", "```sh")


def other_exports(markdown: str) -> str:
    """Sections for what foreword exports and the page does not place by hand, so that none is ever missing."""
    import foreword

    placed = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", markdown, re.MULTILINE)}
    missing = [name for name in foreword.__all__ if name not in placed and not name.startswith("__")]
    missing = [name for name in missing if "errors" not in placed or foreword._HOMES[name] != "foreword.errors"]
    return "\n\n## Other types\n" + "".join(f"\n::: foreword.{name}\n" for name in missing) if missing else ""


def _from_docs(link: re.Match[str]) -> str:
    """A link of a page in the root, as one of a page in docs/."""
    text, target = link.groups()
    if "://" in target:
        return link.group()
    return f"[{text}]({posixpath.relpath(target, 'docs')})"


def _inside(link: re.Match[str], folder: str) -> str:
    text, target = link.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or not path:
        return link.group()
    place = posixpath.normpath(posixpath.join("docs", folder, path))
    if place.startswith("docs/"):
        return link.group()
    for page, source in ROOT_PAGES.items():
        if place == source:
            return f"[{text}]({posixpath.relpath(page, folder or '.')}{'#' * bool(anchor)}{anchor})"
    return text
