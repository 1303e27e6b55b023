"""Griffe extension: the comment beside a field, or above it, is the field's description in the reference."""

import ast
import re
from typing import Any

from griffe import Attribute, Docstring, Extension, ObjectNode

_TRAILING = re.compile(r"#\s*(.+)$")


class FieldComments(Extension):
    """Fields of dataclasses are described by comments in the source."""

    def on_attribute_instance(self, *, node: ast.AST | ObjectNode, attr: Attribute, **_: Any) -> None:
        """Take the comment for the docstring where there is none."""
        lines = getattr(attr.parent.module, "lines", []) if attr.parent else []
        if attr.docstring is not None or attr.lineno is None or not lines:
            return
        text = " ".join(filter(None, [_above(lines, attr.lineno), _beside(lines, attr.endlineno or attr.lineno)]))
        if text:
            attr.docstring = Docstring(text[0].upper() + text[1:] + ("" if text.endswith(".") else "."), parent=attr)


def _beside(lines: list[str], number: int) -> str:
    found = _TRAILING.search(lines[number - 1])
    return found.group(1).strip() if found else ""


def _above(lines: list[str], number: int) -> str:
    """Comment lines directly above a field."""
    words: list[str] = []
    place = number - 2
    while place >= 0 and lines[place].strip().startswith("#"):
        words.insert(0, lines[place].strip().lstrip("# "))
        place -= 1
    return " ".join(words)
