"""Calls of tools in an answer's text, while it grows.

What comes out does not depend on how the text was cut into pieces. An answer without a call comes out as it is. Tags,
and white space around calls, are never content; the end of the text is held while it could become a tag.

    text   | content | <tool_call> | {"name": "f", "arguments": {...}} | </tool_call> | ...
    mode     text      between       object                              between        text
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from foreword.server.tools.call_object import CallObject, JsonValue
from foreword.server.tools.syntax import CallSyntax

_SPACE = " \t\r\n"
_LIST_MARKS = "[],;"
_CALL_ID = "[CALL_ID]"
_LONGEST_NAME = 300  # characters, with an id


@dataclass(frozen=True)
class ContentDelta:
    """Text of the answer that is no call."""

    text: str


@dataclass(frozen=True)
class CallDelta:
    """What is new of a call: its name with the first piece, then its arguments as JSON text."""

    index: int
    arguments: str
    name: str | None = None


Delta = ContentDelta | CallDelta
_Mode = Literal["text", "between", "object", "name", "value"]


class CallParser:
    """Reads one answer.

    Args:
        syntax: how its calls are written.
        tool_names: the tools that there are. A call without a tag is one only if it names one of them.
        max_calls: most calls; further ones are left out. None for no limit.
        is_held: the answer is held to calls, so that nothing of it is content, wherever it ends.
    """

    def __init__(
        self, syntax: CallSyntax, tool_names: Iterable[str], max_calls: int | None = None, *, is_held: bool = False
    ) -> None:
        self._syntax, self._names, self._max_calls = syntax, frozenset(tool_names), max_calls
        self._is_held = is_held
        self.num_calls = 0
        self.is_whole = True  # once it has finished: no call was cut within its arguments
        self._mode: _Mode = "text"
        self._is_start = syntax.is_bare  # nothing but white space yet, so that an object is a call without a tag
        self._held = ""  # not certain yet: white space, then what a tag begins with
        self._section = ""  # what has been read as calls, and would be content if it turned out to be none
        self._is_tagged = self._wants_name = False
        self._call = CallObject()
        self._value = JsonValue()
        self._name = ""
        self._is_told = self._is_muted = False  # of the call under way: given out; beyond the most
        self._out: list[Delta] = []

    def feed(self, text: str) -> list[Delta]:
        """What is certain with this text."""
        for char in text:
            self._step(char)
        return self._taken()

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """The rest. `is_cut`: the answer was ended by its length, so that a part of a tag is no content."""
        held, self._held = self._held, ""
        self.is_whole = not (self._is_told and self._mode in ("object", "value"))
        if self._is_held:
            self._section = ""
        elif self._mode == "text":
            tag = held.lstrip(_SPACE)
            if is_cut and len(tag) > 1:
                held = held.removesuffix(tag)
            self._content(held if held.strip(_SPACE) or not self.num_calls else "")
        elif not self._is_told and not (is_cut and self._is_tagged):
            left = self._section + held
            self._content(left if left.strip(_SPACE + _LIST_MARKS) or not self.num_calls else "")
        self._mode = "text"
        return self._taken()

    def _step(self, char: str) -> None:
        if self._mode == "text":
            self._text(char)
        elif self._mode == "between":
            self._between(char)
        elif self._mode == "object":
            self._object(char)
        elif self._mode == "name":
            self._name_of_call(char)
        else:
            self._arguments(char)

    def _text(self, char: str) -> None:
        self._held += char
        rest = self._held.lstrip(_SPACE)
        syntax = self._syntax
        if rest and rest == syntax.open:
            self._begin_section(tag=rest)
        elif rest and rest == syntax.close and self.num_calls:
            self._held = self._held.removesuffix(rest)  # left over from a call that was read without it
        elif self._is_start and rest in ("{", "["):
            self._begin_section(tag="")
            self._held = ""
            self._between(char)
        elif rest and not any(tag.startswith(rest) for tag in syntax.tags):
            self._is_start = False
            certain = len(self._held) - len(rest) + 1
            following, self._held = self._held[certain:], self._held[:certain]
            self._content(self._held)
            self._held = ""
            self._again(following)

    def _begin_section(self, tag: str) -> None:
        before = self._held.removesuffix(tag) if tag else self._held[:-1]
        self._section, self._held = before + tag, ""
        self._is_start, self._is_tagged, self._wants_name = False, bool(tag), bool(tag and self._syntax.argument_tag)
        self._is_told, self._mode = False, "between"

    def _between(self, char: str) -> None:
        """Before a call, between two, and after one: white space, tags, what lists are written with."""
        if not self._held and char in _SPACE:
            self._section += char
            return
        self._held += char
        rest, syntax = self._held, self._syntax
        if rest == syntax.close:
            self._end_section() if self.num_calls else self._give_up()
        elif rest == syntax.open:
            self._section, self._held = self._section + rest, ""
            self._is_tagged, self._wants_name = True, bool(syntax.argument_tag)
        elif not any(tag.startswith(rest) for tag in syntax.tags):
            self._held = ""
            self._between_other(rest)

    def _between_other(self, text: str) -> None:
        if text == "{" and not self._wants_name:
            self._mode, self._call, self._is_told = "object", CallObject(), False
            self._object(text)
        elif text[0] in _LIST_MARKS:
            self._wants_name = False
            self._section += text[0]
            self._again(text[1:])
        elif self._wants_name:
            self._mode, self._name, self._is_told = "name", "", False
            self._again(text)
        elif self._section.strip(_SPACE + _LIST_MARKS) or not self.num_calls:
            self._give_up()
            self._again(text)
        else:
            self._end_section()
            self._again(text)

    def _object(self, char: str) -> None:
        call = self._call
        call.feed(char)
        self._section += "" if self._is_told else char
        if call.is_call and not self._is_told and not call.is_failed:
            if not self._is_tagged and call.name not in self._names:
                self._give_up()
                return
            self._tell(call.name or "")
        if self._is_told:
            self._add_arguments(call.take())
        if call.is_done or (call.is_failed and self._is_told):
            self._mode = "between"
        elif call.is_failed:
            self._give_up()

    def _name_of_call(self, char: str) -> None:
        self._section, self._name = self._section + char, self._name + char
        tag = self._syntax.argument_tag
        if self._name.endswith(tag):
            self._name = self._name.removesuffix(tag).partition(_CALL_ID)[0].strip()
            self._mode, self._value = "value", JsonValue()
        elif char == "\n" or len(self._name) > _LONGEST_NAME:
            self._give_up()

    def _arguments(self, char: str) -> None:
        if not self._value.chars and char in _SPACE:
            self._section += char
            return
        if not self._value.chars:
            if char != "{" or not self._name:
                self._give_up()
                self._again(char)
                return
            self._tell(self._name)
        self._value.feed(char)
        self._add_arguments(char)
        if self._value.is_whole or self._value.is_wrong:
            self._mode, self._wants_name = "between", False

    def _tell(self, name: str) -> None:
        self._is_told, self._section = True, ""
        self._is_muted = self._max_calls is not None and self.num_calls >= self._max_calls
        if not self._is_muted:
            self._out.append(CallDelta(self.num_calls, "", name))
            self.num_calls += 1

    def _add_arguments(self, text: str) -> None:
        if text and not self._is_muted:
            self._out.append(CallDelta(self.num_calls - 1, text))

    def _give_up(self) -> None:
        """What was read as a call is content."""
        text, self._section = self._section + self._held, ""
        self._held, self._mode, self._is_told = "", "text", False
        self._content(text)

    def _end_section(self) -> None:
        self._held, self._section, self._mode, self._is_told = "", "", "text", False

    def _again(self, text: str) -> None:
        for char in text:
            self._step(char)

    def _content(self, text: str) -> None:
        if text and not self._is_held:
            self._out.append(ContentDelta(text))

    def _taken(self) -> list[Delta]:
        """What has come out, neighbours joined."""
        out, self._out = self._out, []
        joined: list[Delta] = []
        for delta in out:
            last = joined[-1] if joined else None
            if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
                joined[-1] = ContentDelta(last.text + delta.text)
            elif isinstance(delta, CallDelta) and isinstance(last, CallDelta) and delta.index == last.index:
                joined[-1] = replace(last, arguments=last.arguments + delta.arguments)
            else:
                joined.append(delta)
        return joined


@dataclass(frozen=True)
class ParsedCall:
    """One whole call."""

    name: str
    arguments: str  # as JSON text


def joined(deltas: Iterable[Delta]) -> tuple[str, list[ParsedCall]]:
    """Content and calls of an answer, from all that came out of it."""
    content, names, arguments = "", list[str](), list[str]()
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
        elif delta.name is not None:
            names.append(delta.name)
            arguments.append(delta.arguments)
        else:
            arguments[delta.index] += delta.arguments
    return content, [ParsedCall(name, text) for name, text in zip(names, arguments, strict=True)]


def parse(
    text: str, syntax: CallSyntax, tool_names: Sequence[str], *, is_cut: bool = False
) -> tuple[str, list[ParsedCall]]:
    """Content and calls of a whole answer."""
    parser = CallParser(syntax, tool_names)
    return joined([*parser.feed(text), *parser.finish(is_cut=is_cut)])
