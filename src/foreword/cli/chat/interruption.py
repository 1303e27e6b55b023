"""Ctrl-C that ends an answer and not the program."""

import signal
import threading
from types import FrameType
from typing import Any


class Interruption:
    """While it is entered, Ctrl-C sets `is_wanted`, so that an answer can end between two passes and nothing is torn.

    Pressed twice, or before `is_gentle` is set (a long prompt is still being read), it raises `KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.is_gentle = False
        self._previous: Any = None

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # others get no signals
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted or not self.is_gentle:
            raise KeyboardInterrupt
        self.is_wanted = True
