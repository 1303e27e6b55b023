"""`POST /v1/completions` and the tokenizer's endpoints: what clients send."""

from typing import Any

from foreword.server.wire.chat import ChatMessage
from foreword.server.wire.common import SamplingFields, TokenId, Wire


class CompletionRequest(SamplingFields):
    """The body."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None


class TokenizeRequest(Wire):
    """Text or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeRequest(Wire):
    """Token ids."""

    model: str | None = None
    tokens: list[TokenId]
