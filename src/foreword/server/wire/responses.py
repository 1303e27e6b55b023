"""`POST /v1/responses`: what clients send."""

from typing import Any

from pydantic import Field

from foreword.server.wire.common import Content, SamplingFields, Wire


class InputItem(Wire):
    """A message, a call that was made, or its result: `type` says which; none given is a message."""

    type: str | None = None
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None


class TextFormat(Wire):
    """What the answer's text must look like."""

    type: str
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Wire):
    """Of the answer's text."""

    format: TextFormat | None = None


class FlatTool(Wire):
    """A tool; of the kinds there are, functions alone."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(Wire):
    """The tool that must be called."""

    type: str
    name: str | None = None


class ResponsesRequest(SamplingFields):
    """The body. The options of sampling that chat has beyond the API's own work here too."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    tools: list[FlatTool] | None = None
    tool_choice: str | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    reasoning: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    service_tier: Any = None

    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None

    chat_template_kwargs: dict[str, Any] | None = None
