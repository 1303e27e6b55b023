"""Conversations with tools, as a chat template takes them: descriptions, earlier calls, results."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from foreword.server.tools.grammar import Tool
from foreword.server.tools.syntax import CallSyntax

Message = Mapping[str, Any]
SHORT_ID = 9  # letters and digits: what Mistral's templates insist on

_INSTRUCTIONS = """\
You can call functions. These are the functions, each with a JSON schema of its arguments:
{functions}
To call a function, answer with a JSON object alone, without any other text:
{{"name": the function's name, "arguments": {{its arguments}}}}
To call several, write one such object per line."""


def with_tools(messages: Sequence[Message], tools: Sequence[Tool], syntax: CallSyntax) -> list[dict[str, Any]]:
    """The messages for the template, which gets `tools` beside them where it knows of them (`syntax.in_template`).

    Arguments of earlier calls, which clients send as JSON text, become objects, as templates expect them. A template
    that knows nothing of tools gets them described in the system message, calls as the text that the model was asked to
    write, and results as the user's words.
    """
    if syntax.in_template:
        return [_for_template(message, syntax) for message in messages]
    plain = _without_tool_roles(messages)
    if not tools:
        return plain
    functions = "\n".join(json.dumps(tool.described()["function"], ensure_ascii=False) for tool in tools)
    return _with_system(plain, _INSTRUCTIONS.format(functions=functions))


def _for_template(message: Message, syntax: CallSyntax) -> dict[str, Any]:
    made = dict(message)
    if made.get("tool_calls"):
        made["tool_calls"] = [_template_call(call, syntax) for call in made["tool_calls"]]
    else:
        made.pop("tool_calls", None)
    if syntax.short_ids and made.get("tool_call_id"):
        made["tool_call_id"] = _short(made["tool_call_id"])
    return made


def _template_call(call: Mapping[str, Any], syntax: CallSyntax) -> dict[str, Any]:
    function = dict(call["function"])
    function["arguments"] = arguments_of(function.get("arguments"))
    call_id = str(call.get("id") or "")
    return {"type": "function", "id": _short(call_id) if syntax.short_ids else call_id, "function": function}


def arguments_of(given: Any) -> Any:
    """Arguments as an object where they are the JSON text of one; otherwise as they are: a model's mistake is shown to it."""
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except (ValueError, RecursionError):
            return given
        return found if isinstance(found, dict) else given
    return given


def _short(call_id: str) -> str:
    if len(call_id) == SHORT_ID and call_id.isalnum() and call_id.isascii():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:SHORT_ID]


def _without_tool_roles(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Calls and results as plain words; results that follow each other are one message."""
    names: dict[str, str] = {}
    made: list[dict[str, Any]] = []
    joins = False
    for message in messages:
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool":
            call_id = str(message.get("tool_call_id"))
            name = names.get(call_id, message.get("name") or call_id)
            text = f"The result of {name}: {message.get('content') or ''}"
            if joins:
                made[-1]["content"] += f"\n{text}"
            else:
                made.append({"role": "user", "content": text})
            joins = True
            continue
        joins = False
        names |= {str(call.get("id")): call["function"]["name"] for call in calls}
        parts = [*([message["content"]] if message.get("content") else []), *(_written(call) for call in calls)]
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        made.append({**rest, "content": "\n".join(parts)} if calls else rest)
    return made


def _written(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = arguments_of(function.get("arguments"))
    return json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)


def _with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": f"{first.get('content') or ''}\n\n{text}".lstrip()}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
