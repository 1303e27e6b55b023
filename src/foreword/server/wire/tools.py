"""Tools in what clients send: functions, which of them to call, and calls made earlier."""

from typing import Any

from foreword.server.wire.common import Wire


class FunctionSpec(Wire):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSpec(Wire):
    """A tool; of the kinds there are, functions alone."""

    type: str
    function: FunctionSpec | None = None


class CalledFunction(Wire):
    """What was called."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Wire):
    """A call that an assistant made."""

    id: str | None = None
    type: str = "function"
    function: CalledFunction


class NamedFunction(Wire):
    """A function by its name."""

    name: str


class NamedChoice(Wire):
    """The tool that must be called."""

    type: str
    function: NamedFunction | None = None
