"""Chat templates: messages -> the text a model was trained to continue.

Templates are programs that come with a model, so they run in jinja's immutable sandbox. The environment offers what
templates written for transformers rely on: block trimming, loop controls, `raise_exception`, `strftime_now`, `tojson`
without HTML escapes, and the `{% generation %}` tag, which marks the assistant's words for training and prints them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from foreword.checkpoint.reading import reason_of
from foreword.checkpoint.template_bounds import MOST_TEXT, BoundedRange, EndlessTemplateError
from foreword.errors import CheckpointError, ConfigError

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}


class ChatTemplate:
    """A compiled template.

    Args:
        text: the template.
        special_tokens: texts it may name: bos_token, eos_token and so on.
        source: the model's name for error messages.
    """

    def __init__(self, text: str, special_tokens: Mapping[str, str], source: str) -> None:
        self.text = text
        self._special_tokens = dict(special_tokens)
        self._source = source

    @cached_property
    def _compiled(self) -> Any:
        try:
            return _environment().from_string(self.text)
        except (Exception, RecursionError) as error:  # jinja's own errors, or Python's for what no compiler can take
            raise CheckpointError(f"{self._source} has a damaged chat template: {reason_of(error)}") from error

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, options: Mapping[str, Any] | None = None
    ) -> str:
        """The text of a conversation, ending where the assistant begins to speak.

        Args:
            messages: the conversation, oldest first.
            add_generation_prompt: end with the opening of the assistant's turn.
            options: further variables of the template, such as `tools` or `enable_thinking`.

        Raises:
            ConfigError: messages that are none, or that the template refuses.
        """
        from jinja2 import TemplateError

        variables: dict[str, Any] = {"tools": None, "documents": None, **self._special_tokens, **(options or {})}
        variables |= {"messages": _checked(messages), "add_generation_prompt": add_generation_prompt}
        variables["range"] = BoundedRange()
        template = self._compiled
        try:
            return _bounded(template.generate(variables))
        except EndlessTemplateError as error:
            raise CheckpointError(
                f"the chat template of {self._source} does not end: it {error}; it is damaged"
            ) from error
        except Exception as error:  # a template is a program: it may raise whatever a program raises
            roles = ", ".join(str(message["role"]) for message in messages)
            reason = str(error) if isinstance(error, TemplateError) else reason_of(error)
            raise ConfigError(
                f"the chat template of {self._source} refuses these messages ({reason}); their roles are: {roles}"
            ) from error


def _bounded(parts: Iterable[str]) -> str:
    """The text of its parts."""
    text, length = [], 0
    for part in parts:
        text.append(part)
        length += len(part)
        if length > MOST_TEXT:
            raise EndlessTemplateError(f"writes more than {MOST_TEXT:,} characters")
    return "".join(text)


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, str | Mapping) or not messages:
        raise ConfigError(
            f"a conversation is a list of messages such as {{'role': 'user', 'content': 'Hello'}}, not {messages!r}"
        )
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message:
            raise ConfigError(f"a message is a table with 'role' and 'content', not {message!r}")
    # A key without a value is left out, as transformers does: clients write `"content": null` beside tool calls, and many
    # templates would print it as "None".
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension

    from foreword.checkpoint.template_sandbox import BoundedSandbox

    class Generation(Extension):
        """`{% generation %}body{% endgeneration %}` prints its body."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, not escaped for HTML as jinja's own filter does it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
