"""Every error foreword raises on purpose.

    ForewordError
    ├── ConfigError(ValueError)             an option or argument is wrong
    │   ├── PromptTooLongError              a prompt does not fit the context
    │   └── UnknownNameError                a name is not registered; lists the names that are
    ├── LoadError(OSError)                  a model could not be loaded
    │   ├── ModelNotFoundError              no such file, folder or hub id
    │   ├── CheckpointError                 the files are truncated, corrupt or incomplete
    │   ├── DownloadError                   fetching failed or the checksum is wrong
    │   └── UnsupportedModelError           architecture, option or quantisation that is not supported
    │       └── UnsupportedArchitectureError    an architecture that foreword has no decoder for
    ├── CapacityError(MemoryError)          it does not fit in memory
    ├── QueueFullError(RuntimeError)        too many requests wait already; ask again later
    ├── ClosedError(RuntimeError)           the LLM was closed, or its process was forked from one with a pass under way
    ├── FidelityError(AssertionError)       speculative output differs from plain decoding
    └── KernelError(RuntimeError)           the native runtime failed or is not available

A message says what is wrong (with the values), what is allowed, and what to do. The command line turns each of these
into one line on stderr and exit code 2.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class ForewordError(Exception):
    """Base of all errors that foreword raises on purpose."""


class ConfigError(ForewordError, ValueError):
    """An option or argument has a value that is not allowed."""


class PromptTooLongError(ConfigError):
    """A prompt leaves no room for a single new token."""

    def __init__(self, prompt_tokens: int, context_len: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, but the model's context holds {context_len}, "
            f"one of them for the answer; shorten the prompt by {prompt_tokens - context_len + 1} tokens"
        )


class UnknownNameError(ConfigError):
    """A name that is not registered."""

    def __init__(self, kind: str, name: Any, allowed: Iterable[str]) -> None:
        names = sorted(allowed)
        near = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        super().__init__(f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}")


class LoadError(ForewordError, OSError):
    """A model could not be loaded."""


class ModelNotFoundError(LoadError):
    """There is no such file, folder or hub id, or it could not be reached."""


class CheckpointError(LoadError):
    """A checkpoint's files are truncated, corrupt or incomplete."""


class DownloadError(LoadError):
    """Fetching a file failed, or its checksum is not the expected one."""


class UnsupportedModelError(LoadError):
    """The model's architecture, one of its options or its quantisation is not supported."""


class UnsupportedArchitectureError(UnsupportedModelError):
    """Foreword has no decoder for this architecture; transformers may. Nothing else is ever run through it instead."""


class CapacityError(ForewordError, MemoryError):
    """Something does not fit in memory."""


class QueueFullError(ForewordError, RuntimeError):
    """Too many calls wait already; a server answers 429 and the client asks again later.

    Attributes:
        num_waiting: calls that wait.
        max_queue: most that may.
    """

    def __init__(self, num_waiting: int, max_queue: int) -> None:
        self.num_waiting, self.max_queue = num_waiting, max_queue
        super().__init__(
            f"{num_waiting} calls wait already, and max_queue is {max_queue}; ask again later, or raise max_queue"
        )


class ClosedError(ForewordError, RuntimeError):
    """The LLM has been closed, so that it takes no requests and those that ran have ended."""


class FidelityError(ForewordError, AssertionError):
    """Speculative output differs from plain decoding by more than a proven near-tie."""


class KernelError(ForewordError, RuntimeError):
    """The native runtime failed or is not available."""
