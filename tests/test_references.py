"""Keys of sources in the code resolve in REFERENCES.md, and every entry there is used."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    [*(ROOT / "src").rglob("*.py"), *(ROOT / "kernels").glob("src/**/*.py"), *(ROOT / "kernels").glob("cpp/**/*.?pp")]
)
# "[leviathan23]", "[a24, section 2.3; b25]": after a space or at the start, so that an index such as x[i0] is none.
_BRACKET = re.compile(r"(?:^|[\s(])\[([a-z]{2,}[^\]\n]*)\]", re.MULTILINE)
_KEY = re.compile(r"[a-z]{2,}\d{1,2}")


def keys_in(text: str) -> set[str]:
    """Keys of all citations in a text."""
    found = set()
    for bracket in _BRACKET.findall(text):
        for part in re.split(r"[,;]", bracket):
            if _KEY.fullmatch(part.strip()):
                found.add(part.strip())
    return found


def used() -> dict[str, str]:
    """Key -> a file that uses it."""
    return {key: str(path.relative_to(ROOT)) for path in SOURCES for key in keys_in(path.read_text())}


def entries() -> list[str]:
    return re.findall(r"^- \*\*\[([a-z]+\d+)\]\*\*", (ROOT / "REFERENCES.md").read_text(), re.MULTILINE)


def test_every_key_has_an_entry():
    missing = {key: file for key, file in used().items() if key not in entries()}
    assert missing == {}


def test_every_entry_is_used():
    assert sorted(set(entries()) - used().keys()) == []


def test_entries_are_sorted_and_single():
    assert entries() == sorted(set(entries()))


def test_keys_are_found_in_lists_and_with_sections():
    text = "as in [eagle24, sequoia24] and [medusa24, section 2.3; rsd24], not x[i0] nor [some words]"
    assert keys_in(text) == {"eagle24", "sequoia24", "medusa24", "rsd24"}
