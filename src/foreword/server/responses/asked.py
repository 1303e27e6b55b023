"""A request of the Responses API as the chat request that asks the same."""

from collections.abc import Sequence
from typing import Any

from foreword.server.errors import invalid
from foreword.server.requests import ALL_ROLES, text_of
from foreword.server.wire.chat import ChatMessage, ChatRequest
from foreword.server.wire.common import JsonSchema, ResponseFormat
from foreword.server.wire.responses import FlatChoice, FlatTool, InputItem, ResponsesRequest
from foreword.server.wire.tools import CalledFunction, FunctionSpec, NamedChoice, NamedFunction, ToolCall, ToolSpec

LOGPROBS = "message.output_text.logprobs"
_SHARED = (
    "model", "stop", "seed", "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "user", "top_k",
    "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "allowed_token_ids", "bad_words",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "prediction", "speculative", "include_speculation",
    "parallel_tool_calls", "chat_template_kwargs",
)  # fmt: skip
_UNSUPPORTED = {
    "store": "this server keeps no responses; leave it out or send false",
    "previous_response_id": "this server keeps no responses; send the earlier items as input",
    "conversation": "this server keeps no conversations; send the earlier items as input",
    "prompt": "this server has no stored prompts; send instructions and input",
    "background": "this server answers while you wait; use stream",
}


def as_chat(request: ResponsesRequest) -> ChatRequest:
    """The chat that it asks for; what a server without a memory cannot do is refused by name."""
    _refuse(request)
    wants_logprobs = LOGPROBS in (request.include or ())
    return ChatRequest(
        **{name: getattr(request, name) for name in _SHARED},
        messages=_messages(request),
        max_completion_tokens=request.max_output_tokens
        if request.max_output_tokens is not None
        else request.max_tokens,
        logprobs=wants_logprobs or None,
        top_logprobs=request.top_logprobs if wants_logprobs else None,
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        tool_choice=_choice(request.tool_choice),
        response_format=_format(request),
    )


def _refuse(request: ResponsesRequest) -> None:
    for name, why in _UNSUPPORTED.items():
        if getattr(request, name):
            raise invalid(f"{name} is not supported: {why}", name)
    if request.truncation not in (None, "disabled"):
        raise invalid(f"truncation is {request.truncation[:40]!r}; allowed: 'disabled'", "truncation")
    if request.n not in (None, 1):
        raise invalid("n is not supported: a response is one answer; ask several times", "n")


def _messages(request: ResponsesRequest) -> list[ChatMessage]:
    given = request.input
    items: Sequence[InputItem] = [InputItem(role="user", content=given)] if isinstance(given, str) else given
    if not items:
        raise invalid("input is empty; give a text or items", "input")
    messages: list[ChatMessage] = []
    for place, item in enumerate(items):
        _add(messages, item, f"input[{place}]")
    if request.instructions:
        messages = _instructed(request.instructions, messages)
    if not messages:
        raise invalid("input has no message; give one", "input")
    return messages


def _instructed(instructions: str, messages: list[ChatMessage]) -> list[ChatMessage]:
    """Instructions and a system message that follows them are one: many templates take no second one."""
    if messages and messages[0].role in ("system", "developer"):
        more = text_of(messages[0].content or "", "input[0].content")
        return [ChatMessage(role="system", content=f"{instructions}\n\n{more}"), *messages[1:]]
    return [ChatMessage(role="system", content=instructions), *messages]


def _add(messages: list[ChatMessage], item: InputItem, where: str) -> None:
    kind = item.type or "message"
    if kind == "message":
        if item.role is None or item.content is None:
            raise invalid(f"{where} is a message without role or content; give both", where)
        if item.role not in ALL_ROLES:
            raise invalid(f"{where}.role is {item.role[:40]!r}; allowed: {', '.join(ALL_ROLES)}", f"{where}.role")
        messages.append(ChatMessage(role=item.role, content=text_of(item.content, f"{where}.content")))
    elif kind == "function_call":
        if item.name is None or item.call_id is None:
            raise invalid(f"{where} is a function_call without name or call_id; give both", where)
        call = ToolCall(id=item.call_id, function=CalledFunction(name=item.name, arguments=item.arguments))
        if not messages or messages[-1].role != "assistant":
            messages.append(ChatMessage(role="assistant"))
        last = messages[-1]
        messages[-1] = last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]})
    elif kind == "function_call_output":
        if item.call_id is None or item.output is None:
            raise invalid(f"{where} is a function_call_output without call_id or output; give both", where)
        messages.append(
            ChatMessage(role="tool", tool_call_id=item.call_id, content=text_of(item.output, f"{where}.output"))
        )
    elif kind != "reasoning":  # what other models thought is left out
        allowed = "message, function_call, function_call_output"
        raise invalid(f"{where} is of type {kind[:40]!r}; allowed: {allowed}", where)


def _tool(tool: FlatTool) -> ToolSpec:
    if tool.type != "function" or tool.name is None:
        return ToolSpec(type=tool.type)  # refused by name where tools are read
    function = FunctionSpec(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return ToolSpec(type="function", function=function)


def _choice(choice: str | FlatChoice | None) -> str | NamedChoice | None:
    if isinstance(choice, FlatChoice):
        return NamedChoice(type=choice.type, function=NamedFunction(name=choice.name) if choice.name else None)
    return choice


def _format(request: ResponsesRequest) -> ResponseFormat | None:
    """`text.format` in the words of chat."""
    asked = None if request.text is None else request.text.format
    if asked is None:
        return request.response_format
    if asked.type not in ("text", "json_object", "json_schema"):
        raise invalid(
            f"text.format is of type {asked.type[:40]!r}; allowed: text, json_object, json_schema", "text.format"
        )
    if asked.type != "json_schema":
        return ResponseFormat(type=asked.type)
    if asked.schema_ is None:
        raise invalid("text.format of type json_schema needs a schema", "text.format.schema")
    schema: dict[str, Any] = {"name": asked.name, "schema": asked.schema_, "strict": asked.strict}
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(**schema))
