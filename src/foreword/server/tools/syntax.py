"""How model families write calls of tools: data, and which of them a chat template was made for."""

from collections.abc import Callable
from dataclasses import dataclass

LLAMA3_TAG = "<|python_tag|>"
MISTRAL_TAG = "[TOOL_CALLS]"


@dataclass(frozen=True)
class CallSyntax:
    """The texts around a call. What is between them is an object with a name and arguments, or the arguments alone.

    Args:
        name: what it is called in messages and logs.
        open: begins a call, or a list of them; "" where calls have no tag.
        close: ends a call; "" where the end of its JSON does.
        arguments_key: the key of the arguments, as the model was trained to write it. Both usual ones are read.
        argument_tag: between a name and its arguments, where a call is no object: `name[ARGS]{...}`.
        is_list: whether the calls of an answer are written as one list.
        is_bare: whether an answer that begins with such an object is a call, without a tag before it.
        separator: between two calls, as this syntax is written here; when reading, any of the usual ones will do.
        in_template: whether the chat template describes the tools and the calls; else the system message has to.
        short_ids: whether templates want ids of calls that are nine letters or digits.
    """

    name: str
    open: str = ""
    close: str = ""
    arguments_key: str = "arguments"
    argument_tag: str = ""
    is_list: bool = False
    is_bare: bool = False
    separator: str = "\n"
    in_template: bool = True
    short_ids: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """The texts that never are content."""
        return tuple(tag for tag in (self.open, self.close) if tag)


HERMES = CallSyntax("hermes", open="<tool_call>", close="</tool_call>")
LLAMA3 = CallSyntax("llama3", open=LLAMA3_TAG, arguments_key="parameters", is_bare=True, separator="; ")
MISTRAL = CallSyntax("mistral", open=MISTRAL_TAG, is_list=True, separator=", ", short_ids=True)
MISTRAL_NAMED = CallSyntax("mistral-named", open=MISTRAL_TAG, argument_tag="[ARGS]", separator="", short_ids=True)
PLAIN = CallSyntax("plain", is_bare=True, in_template=False)
SYNTAXES = (HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED, PLAIN)


def syntax_of(template: str | None) -> CallSyntax:
    """The syntax that a chat template shows its model; `PLAIN` for one that shows none, or one that is not known here."""
    if template is None or "tools" not in template:
        return PLAIN
    if MISTRAL_TAG in template:
        return MISTRAL_NAMED if MISTRAL_NAMED.argument_tag in template else MISTRAL
    if HERMES.open in template and "<function=" not in template and "<arg_key>" not in template:
        return HERMES
    if LLAMA3_TAG in template or ('"parameters"' in template and "ipython" in template):
        return LLAMA3
    return PLAIN


@dataclass(frozen=True)
class SpecialTags:
    """The tags of a syntax that are special tokens of a model, which the text of an answer leaves out unless told."""

    ids: tuple[tuple[str, int], ...] = ()  # tag, token id

    @classmethod
    def of(cls, syntax: CallSyntax, special_id: Callable[[str], int | None]) -> "SpecialTags":
        """`special_id`: the id of a text that is a special token, None for other texts (`Tokenizer.special_id`)."""
        tags = (*syntax.tags, syntax.argument_tag)
        found = ((tag, special_id(tag)) for tag in tags if tag)
        return cls(tuple((tag, token) for tag, token in found if token is not None))

    def id_of(self, tag: str) -> int | None:
        """Its token, None where it is ordinary text."""
        return dict(self.ids).get(tag)
