"""Grammars that hold an answer to calls of tools, in the words of the model's own syntax.

What is written around names and arguments is forced, so that it is drafted for nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foreword.sampling.grammar import Grammar
from foreword.server.tools.syntax import CallSyntax, SpecialTags

NO_TAGS = SpecialTags()
MOST_CALLS = 16  # in one answer that has to consist of calls
# JSON in one line, as the templates write it: every separator is forced, and no model can go on with spaces for ever.
JSON_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None  # JSON schema of its arguments
    is_strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """What its arguments are held to: an object, which has no other keys unless the schema says so."""
        given = dict(self.parameters or {})
        made: dict[str, Any] = {"type": "object", "properties": {}, **given}
        if not any(key in given for key in ("$ref", "anyOf", "oneOf", "allOf", "patternProperties")):
            made.setdefault("additionalProperties", False)
        return made

    def described(self) -> dict[str, Any]:
        """As chat templates take it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = dict(self.parameters or {"type": "object", "properties": {}})
        return {"type": "function", "function": function}


def calls_grammar(
    tools: Sequence[Tool], syntax: CallSyntax, tags: SpecialTags = NO_TAGS, *, is_parallel: bool = True
) -> Grammar:
    """One call of one of `tools`, or several where `is_parallel`, and nothing else.

    Args:
        tools: at least one.
        syntax: how the model writes calls.
        tags: those of its tags that are special tokens.
        is_parallel: whether there may be more than one call.
    """
    rules = [f"call: {' | '.join(f'call_{place}' for place in range(len(tools)))}"]
    rules += [f"call_{place}: {_call(tool, syntax, tags)}" for place, tool in enumerate(tools)]
    more = f"({_text(syntax.separator)} call){{0,{MOST_CALLS - 1}}}" if is_parallel else ""
    start = f"call {more}"
    if syntax.is_list:
        start = f'{_tag(syntax.open, tags)} "[" {start} "]"'
    return Grammar.lark("\n".join(["%llguidance {}", f"start: {start}", *rules]))


def _call(tool: Tool, syntax: CallSyntax, tags: SpecialTags) -> str:
    arguments = f"%json {json.dumps({**tool.schema, 'x-guidance': JSON_SPACING}, ensure_ascii=True)}"
    if syntax.argument_tag:
        parts = [_tag(syntax.open, tags), _text(tool.name), _tag(syntax.argument_tag, tags), arguments]
        return " ".join(parts)
    opening = f'{{"name": {json.dumps(tool.name)}, "{syntax.arguments_key}": '
    if not syntax.close:
        return f'{_text(opening)} {arguments} "}}"'
    if tags.id_of(syntax.open) is None and tags.id_of(syntax.close) is None:
        before, after = syntax.open + "\n" + opening, "}\n" + syntax.close
        return f"{_text(before)} {arguments} {_text(after)}"
    parts = [_tag(syntax.open, tags), _text(f"\n{opening}"), arguments, _text("}\n"), _tag(syntax.close, tags)]
    return " ".join(parts)


def _tag(tag: str, tags: SpecialTags) -> str:
    token = tags.id_of(tag)
    return _text(tag) if token is None else f"<[{token}]>"


def _text(text: str) -> str:
    return json.dumps(text) if text else ""
