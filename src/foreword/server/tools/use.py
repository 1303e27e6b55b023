"""The tools of one request: what its prompt says of them, what holds the answer, and what is read from it."""

import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.sampling.grammar import Grammar
from foreword.sampling.params import SamplingParams
from foreword.server.errors import invalid
from foreword.server.tools.grammar import Tool, calls_grammar
from foreword.server.tools.messages import SHORT_ID, Message, with_tools
from foreword.server.tools.parser import CallParser, ContentDelta, Delta, joined
from foreword.server.tools.syntax import PLAIN, CallSyntax, SpecialTags, syntax_of
from foreword.server.wire.tools import FunctionSpec, NamedChoice, ToolSpec

MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LETTERS = string.ascii_letters + string.digits
Mode = Literal["auto", "none", "required"]


@dataclass(frozen=True)
class ToolUse:
    """Functions, and whether they may or must be called.

    Args:
        tools: all of them, as the prompt describes them.
        allowed: those that the answer may call.
        mode: "required" holds the answer to calls of `allowed`; "none" reads no calls.
        syntax: how the model writes calls.
        tags: those of its tags that are special tokens.
        is_parallel: whether one answer may have several calls.
    """

    tools: tuple[Tool, ...] = ()
    allowed: tuple[Tool, ...] = ()
    mode: Mode = "none"
    syntax: CallSyntax = PLAIN
    tags: SpecialTags = SpecialTags()
    is_parallel: bool = True

    @property
    def reads_calls(self) -> bool:
        """Whether the answer may have calls."""
        return self.mode != "none" and bool(self.allowed)

    @property
    def grammar(self) -> Grammar | None:
        """What the answer is held to; None where it is free."""
        if self.mode != "required":
            return None
        return calls_grammar(self.allowed, self.syntax, self.tags, is_parallel=self.is_parallel)

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables of the chat template."""
        is_told = self.syntax.in_template and self.tools
        return {"tools": [tool.described() for tool in self.tools]} if is_told else {}

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """A conversation as the template takes it."""
        return with_tools(messages, self.tools, self.syntax)

    def params(self, params: SamplingParams) -> SamplingParams:
        """Options under which the answer's text shows the tags. Stop strings would cut calls that are held to a schema."""
        shown = replace(params, skip_special_tokens=False) if self.reads_calls and self.tags.ids else params
        return replace(shown, stop=()) if self.mode == "required" else shown

    def parser(self) -> CallParser | None:
        """Reads one answer; None where it has no calls."""
        if not self.reads_calls:
            return None
        most, names = None if self.is_parallel else 1, [tool.name for tool in self.allowed]
        return CallParser(self.syntax, names, most, is_held=self.mode == "required")

    def new_id(self) -> str:
        """For a call."""
        if self.syntax.short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(SHORT_ID))
        return f"call_{secrets.token_hex(12)}"

    def read(self, text: str, *, is_cut: bool) -> tuple[str, list[dict[str, Any]], bool]:
        """Content and calls of a whole answer, as the chat API writes them; and whether the last call is whole."""
        parser = self.parser()
        if parser is None:
            return text, [], True
        content, calls = joined([*parser.feed(text), *parser.finish(is_cut=is_cut)])
        return (
            content,
            [
                {"id": self.new_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ],
            parser.is_whole,
        )


def tool_use(
    specs: Sequence[ToolSpec] | None,
    choice: str | NamedChoice | None,
    is_parallel: bool | None,
    tokenizer: Tokenizer,
) -> ToolUse:
    """The tools of a request; what cannot be done is refused by name."""
    syntax = syntax_of(tokenizer.chat_template)
    tools = _tools(specs or ())
    mode, allowed = _choice(choice, tools)
    tags = SpecialTags.of(syntax, tokenizer.special_id)
    is_named = isinstance(choice, NamedChoice)  # that call, once
    return ToolUse(tools, allowed, mode, syntax, tags, is_parallel is not False and not is_named)


def _tools(specs: Sequence[ToolSpec]) -> tuple[Tool, ...]:
    if len(specs) > MOST_TOOLS:
        raise invalid(f"there are {len(specs)} tools; allowed: at most {MOST_TOOLS}", "tools")
    tools = tuple(_tool(spec, f"tools[{place}]") for place, spec in enumerate(specs))
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise invalid(f"two tools have the name {min(twice)!r}; give every tool one of its own", "tools")
    return tools


def _tool(spec: ToolSpec, where: str) -> Tool:
    if spec.type != "function":
        raise invalid(f"{where} is of type {spec.type[:40]!r}; this server calls tools of type 'function' alone", where)
    function = spec.function
    if function is None:
        raise invalid(f"{where} has no function; give function: {{name, description, parameters}}", f"{where}.function")
    return checked_tool(function, f"{where}.function")


def checked_tool(function: FunctionSpec, where: str) -> Tool:
    """A function, its name and schema looked at."""
    if not _NAME.fullmatch(function.name):
        raise invalid(
            f"{where}.name is {function.name[:80]!r}; allowed: 1 to 64 letters, digits, '_', '-' and '.'",
            f"{where}.name",
        )
    given = function.parameters
    if given and given.get("type", "object") != "object":
        raise invalid(f"{where}.parameters is no schema of an object; arguments have names", f"{where}.parameters")
    return Tool(function.name, function.description, given, bool(function.strict))


def _choice(choice: str | NamedChoice | None, tools: tuple[Tool, ...]) -> tuple[Mode, tuple[Tool, ...]]:
    if choice is None:
        return ("auto" if tools else "none"), tools
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise invalid(
                f"tool_choice is {choice[:40]!r}; allowed: auto, none, required, or {{type: function, function: {{name}}}}",
                "tool_choice",
            )
        if choice == "required" and not tools:
            raise invalid("tool_choice is required, but there are no tools to call", "tool_choice")
        return choice, tools  # type: ignore[return-value]
    if choice.type != "function" or choice.function is None:
        raise invalid(f"tool_choice of type {choice.type[:40]!r} is not supported; name a function", "tool_choice")
    named = tuple(tool for tool in tools if tool.name == choice.function.name)
    if not named:
        names = ", ".join(tool.name for tool in tools) or "none"
        raise invalid(
            f"tool_choice names {choice.function.name[:80]!r}, which is no tool of this request; there are: {names}",
            "tool_choice",
        )
    return "required", named


class DeltaWriter:
    """One answer's text, as the deltas that the chat API streams."""

    def __init__(self, use: ToolUse) -> None:
        self._use, self._parser = use, use.parser()
        self._has_calls = False

    @property
    def has_calls(self) -> bool:
        """Whether there were calls, and the last is whole; known once the answer has ended."""
        return self._has_calls and self._parser is not None and self._parser.is_whole

    def push(self, text: str, *, ends: bool = False, is_cut: bool = False) -> dict[str, Any]:
        """What is new; empty where nothing is certain yet."""
        if self._parser is None:
            return {"content": text} if text else {}
        deltas: list[Delta] = self._parser.feed(text)
        if ends:
            deltas += self._parser.finish(is_cut=is_cut)
        made: dict[str, Any] = {}
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                made["content"] = made.get("content", "") + delta.text
                continue
            call: dict[str, Any] = {"index": delta.index, "function": {"arguments": delta.arguments}}
            if delta.name is not None:
                call |= {"id": self._use.new_id(), "type": "function"}
                call["function"] = {"name": delta.name, "arguments": delta.arguments}
            made.setdefault("tool_calls", []).append(call)
            self._has_calls = True
        return made
