"""What documents say of the drafters, made from their types: the table between the two marks on any page, and the page
docs/reference/drafters.md.

    python -m tests.support.drafter_pages     writes them

`tests/unit/test_docs.py` holds the documents to it.
"""

from dataclasses import fields
from pathlib import Path

from foreword.draft.cascade import CascadeOptions
from foreword.draft.drafter_options import DrafterOptions, bounds_of, help_of
from foreword.draft.drafter_type import DrafterType
from foreword.draft.registry import BUILT_IN, drafter_type

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "drafters.md"
BEGIN, END = "<!-- made by tests/support/drafter_pages.py: begin -->\n", "<!-- end of drafters -->"

_HEAD = """# Drafters and their settings

Made by `python -m tests.support.drafter_pages` from what each drafter's file says of itself. The settings are keys of
`--speculative-config` and of `LLM(speculative_config=...)`, and names in `DraftConfig(options=...)`. A setting that no
drafter named has is refused.

{table}
"""
_COMMON = """
## For all of them

| setting | default | allowed | what it does |
|---|---|---|---|
| `method` | auto | a name, NAME=PATH, or several with commas between | which drafter |
| `model` | none | a folder, file or hub id | the drafter's weights (`path` in Python) |
| `num_speculative_tokens` | the drafter's own | a whole number, 0 to 512, or null | most drafted tokens per step |

Several joined by commas are a cascade: the first whose proposal is worthwhile drafts. A comma may stand in a path: the
longest text after `NAME=` that is a file or folder is the path.
"""


def summary_table() -> str:
    """What each drafter does and needs."""
    rows = [f"| `{one.name}` | {one.summary} | {_needs(one)} | {one.fits} |" for one in _types()]
    return "\n".join(["| drafter | what it does | needs | good for |", "|---|---|---|---|", *rows])


def page() -> str:
    """docs/reference/drafters.md."""
    parts = [_HEAD.format(table=summary_table()), _COMMON]
    for one in _types():
        if fields(one.options):
            parts.append(f"\n## `{one.name}`\n\n{_options_table(one.options)}\n")
    parts.append(f"\n## Several drafters\n\n{_options_table(CascadeOptions)}\n")
    return "".join(parts)


def marked_pages() -> list[Path]:
    """Pages with a place for the table."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [path for path in pages if BEGIN in path.read_text(encoding="utf-8")]


def with_table(text: str) -> str:
    """A page with its table as the types say."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{summary_table()}\n{END}{rest.partition(END)[2]}"


def _types() -> list[DrafterType]:
    return [drafter_type(name) for name in BUILT_IN]


def _needs(one: DrafterType) -> str:
    return f"{one.needs}: `{one.name}={one.takes}`" if one.takes else one.needs


def _options_table(options: type[DrafterOptions]) -> str:
    bounds, help_lines = bounds_of(options), help_of(options)
    rows = [
        f"| `{one.name}` | {_value(one.default)} | {bounds[one.name].allowed} | {help_lines[one.name]} |"
        for one in fields(options)
    ]
    return "\n".join(["| setting | default | allowed | what it does |", "|---|---|---|---|", *rows])


def _value(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else f"{default}"


if __name__ == "__main__":
    for path in marked_pages():
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
