"""`POST /v1/chat/completions`: what clients send."""

from typing import Any

from pydantic import Field

from foreword.server.wire.common import Content, SamplingFields, Wire
from foreword.server.wire.tools import NamedChoice, ToolCall, ToolSpec


class ChatMessage(Wire):
    """One turn. What a template reads beside these stays in it."""

    role: str
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(SamplingFields):
    """The body."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: str | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
