"""Forms of a prompt: plain text, token ids, chat messages."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from foreword.errors import ConfigError

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]


class PromptTokenizer(Protocol):
    """What prompts need of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def apply_chat_template(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn."""
        ...


_BYTES = (bytes, bytearray, memoryview)  # sequences of numbers that are no token ids


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a list of them. A list of texts or of lists is many; any other one, right or wrong, is one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, _BYTES):
        raise ConfigError(
            f"a prompt is {type(prompts).__name__}; allowed: text, token ids, chat messages, or a list of these"
        )
    if all(isinstance(p, Sequence) for p in prompts):
        return list(prompts)  # type: ignore[arg-type]
    return [prompts]  # type: ignore[list-item]


def given_ids(prompt: Prompt) -> list[int] | None:
    """The ids of a prompt that is a list of them, None for text and messages; `ConfigError` for what is neither."""
    if isinstance(prompt, str):
        return None
    if not isinstance(prompt, Sequence) or isinstance(prompt, _BYTES):
        raise ConfigError(f"a prompt is {type(prompt).__name__}; allowed: text, token ids, chat messages")
    if prompt and all(isinstance(p, Mapping) for p in prompt):
        return None
    return [_token_id(p) for p in prompt]


def prompt_ids(prompt: Prompt, tokenizer: PromptTokenizer | None, vocab_size: int) -> list[int]:
    """Token ids of one prompt; `ConfigError` for an empty one or ids outside the vocabulary."""
    ids = given_ids(prompt)
    if ids is not None:
        return _checked_ids(ids, vocab_size)
    if tokenizer is None:
        raise ConfigError("this model has no tokenizer; give the prompt as token ids")
    if isinstance(prompt, str):
        if not prompt:
            raise ConfigError("the prompt is empty; give some text, token ids or chat messages")
        return _checked_ids(tokenizer.encode(prompt), vocab_size)
    for message in prompt:
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise ConfigError(f"a chat message is {message!r}; it needs the keys 'role' and 'content'")
    return _checked_ids(tokenizer.apply_chat_template(list(prompt)), vocab_size)  # type: ignore[arg-type]


def _token_id(item: Any) -> int:
    """As a plain int: numpy's are taken too, True and False are not."""
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    raise ConfigError(f"a prompt has {item!r} in it; allowed: text, or a list of token ids or of chat messages alone")


def _checked_ids(token_ids: list[int], vocab_size: int) -> list[int]:
    if not token_ids:
        raise ConfigError("the prompt is empty: it has no tokens; give at least one")
    for token in token_ids:
        if not 0 <= token < vocab_size:
            raise ConfigError(f"token id {token} is outside the model's vocabulary; allowed: 0 to {vocab_size - 1}")
    return token_ids
