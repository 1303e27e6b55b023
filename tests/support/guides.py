"""Guides whose code is a package: blocks that begin with the name of their file are written as those files."""

import re
from pathlib import Path

from tests.support.plugin import install

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^# (\S+\.py)\n")
_ENTRY = re.compile(r'^(\w+) = "([\w.]+:\w+)"$', re.MULTILINE)


def write_files(guide: Path, folder: Path) -> dict[str, Path]:
    """Write a guide's Python files below a folder; their paths by name."""
    files = {}
    for language, text in _BLOCK.findall(guide.read_text()):
        if language == "python" and (named := _FILE.match(text)):
            path = files[named[1]] = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return files


def write_package(guide: Path, folder: Path) -> dict[str, Path]:
    """As `write_files`, and its entry points as if they were installed."""
    files = write_files(guide, folder)
    blocks = [text for language, text in _BLOCK.findall(guide.read_text()) if language == "toml"]
    install(folder, dict(_ENTRY.findall("".join(blocks))), {})
    return files
