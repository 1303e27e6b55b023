"""One call, read a character at a time: `{"name": "f", "arguments": {...}}`, keys in any order, others ignored."""

import json
from typing import Literal

_SPACE = " \t\r\n"
_ARGUMENT_KEYS = ("arguments", "parameters")
_PAIRS = {"{": "}", "[": "]"}
_MOST_NESTED = 512
_State = Literal["key", "colon", "value", "after", "done", "failed"]


class JsonValue:
    """Finds the end of one JSON value. Brackets and strings are followed; what is inside is not judged."""

    def __init__(self) -> None:
        self.chars: list[str] = []
        self._closers: list[str] = []
        self._in_string = self._is_escaped = False
        self.is_whole = False
        self.is_wrong = False

    @property
    def text(self) -> str:
        """What has been read of it."""
        return "".join(self.chars)

    def feed(self, char: str) -> bool:
        """Take a character in; False where it is no part of the value any more (after a number, true, false or null)."""
        if self._in_string:
            self._feed_string(char)
        elif not self._closers and self.chars and self.chars[0] not in '{["' and char in ",}]" + _SPACE:
            self.is_whole = True
            return False
        else:
            self._feed_bare(char)
        self.chars.append(char)
        return True

    def _feed_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
            self.is_whole = not self._closers

    def _feed_bare(self, char: str) -> None:
        if char == '"':
            self._in_string = True
            self.is_wrong |= bool(self.chars) and not self._closers
        elif char in _PAIRS:
            self._closers.append(_PAIRS[char])
            self.is_wrong |= len(self._closers) > _MOST_NESTED
        elif char in "}]":
            if not self._closers or self._closers.pop() != char:
                self.is_wrong = True
            self.is_whole = not self._closers


class CallObject:
    """An object with a name and arguments.

    `name` is there once it is known that this is a call: name and the beginning of its arguments have been read.
    `take` gives what is new of the arguments: the characters that the model wrote, or what is in them where it wrote
    them as a text.
    """

    def __init__(self) -> None:
        self._raw: list[str] = []
        self.name: str | None = None
        self._state: _State = "key"
        self._key = ""
        self._value = JsonValue()
        self._has_arguments = False
        self._fresh: list[str] = []  # of the arguments, not taken yet
        self._streams = False  # the value under way is the arguments, and an object

    @property
    def raw(self) -> str:
        """All that has been read."""
        return "".join(self._raw)

    @property
    def is_done(self) -> bool:
        """Whether its last bracket has been read."""
        return self._state == "done"

    @property
    def is_failed(self) -> bool:
        """Whether it is no call after all."""
        return self._state == "failed"

    @property
    def is_call(self) -> bool:
        """Whether it is known to be one."""
        return self.name is not None and self._has_arguments

    def take(self) -> str:
        """What is new of the arguments, as JSON text."""
        text, self._fresh = "".join(self._fresh), []
        return text

    def feed(self, char: str) -> None:
        """Take the next character in."""
        self._raw.append(char)
        if len(self._raw) == 1:
            self._state = "key" if char == "{" else "failed"
        elif self._state in ("key", "value"):
            self._feed_value(char)
        elif char not in _SPACE:
            self._feed_between(char)

    def _feed_between(self, char: str) -> None:
        following = {("colon", ":"): "value", ("after", ","): "key", ("after", "}"): "done"}
        self._state = following.get((self._state, char), "failed")  # type: ignore[assignment]
        self._value = JsonValue()
        if self._state == "done" and self.name is None:
            self._state = "failed"
        elif self._state == "done" and not self._has_arguments:
            self._set_arguments("{}")

    def _feed_value(self, char: str) -> None:
        value = self._value
        if not value.chars and char in _SPACE:
            return
        if not value.chars and self._state == "key" and char != '"':
            self._state = "done" if char == "}" and self.is_call else "failed"
            return
        if not value.chars and self._state == "value":
            self._streams = char == "{" and self._key in _ARGUMENT_KEYS and not self._has_arguments
            self._has_arguments |= self._streams
        belongs = value.feed(char)
        if value.is_wrong:
            self._state = "failed"
            return
        if self._streams:
            self._fresh.append(char)
        if value.is_whole:
            self._end_value(value.text)
            if not belongs:
                self._feed_between_after_scalar(char)

    def _feed_between_after_scalar(self, char: str) -> None:
        if self._state == "after" and char not in _SPACE:
            self._feed_between(char)

    def _end_value(self, text: str) -> None:
        is_key, self._value, self._streams = self._state == "key", JsonValue(), False
        self._state = "colon" if is_key else "after"
        if is_key:
            self._key = text_of(text) or ""
        elif self._key == "name" and self.name is None:
            self.name = text_of(text)
            self._state = "after" if self.name else "failed"
        elif self._key in _ARGUMENT_KEYS and not self._has_arguments:
            self._set_arguments("{}" if text == "null" else text_of(text))

    def _set_arguments(self, text: str | None) -> None:
        if text is None:
            self._state = "failed"
        else:
            self._has_arguments = True
            self._fresh.append(text)


def text_of(value: str) -> str | None:
    """The text that a JSON string stands for; None for what is none."""
    try:
        found = json.loads(value, strict=False)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
