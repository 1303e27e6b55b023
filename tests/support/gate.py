"""A decoder whose passes wait until a test lets them go on."""

import threading
from collections.abc import Callable

from tests.support.toy_decoder import ToyDecoder

_PATIENCE_S = 60  # then the test fails instead of hanging


class GatedDecoder(ToyDecoder):
    """While the gate is closed a pass waits in `forward`. `on_pass` runs in the middle of every pass, in its thread."""

    def __init__(self, vocab_size: int = 12, **options) -> None:
        super().__init__(vocab_size, **options)
        self.on_pass: Callable[[], object] = lambda: None
        self._opened, self._entered = threading.Event(), threading.Event()
        self._opened.set()

    def close_gate(self) -> None:
        """The next pass waits."""
        self._entered.clear()
        self._opened.clear()

    def open_gate(self) -> None:
        """All go on."""
        self._opened.set()

    @property
    def is_closed(self) -> bool:
        return not self._opened.is_set()

    def wait_for_pass(self) -> None:
        """Until a pass stands at the gate."""
        assert self._entered.wait(_PATIENCE_S), "no pass has come to the gate"

    def forward(self, batch, *args, **kwargs):
        self._entered.set()
        assert self._opened.wait(_PATIENCE_S), "the gate was never opened"
        self.on_pass()
        return super().forward(batch, *args, **kwargs)
