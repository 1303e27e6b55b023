"""Messages for `foreword chat`: typed at a terminal with line editing, or one per line from a pipe.

A line that ends in a backslash goes on in the next one. Lines that are pasted together are one message: terminals with
bracketed paste hand them over as such, and what else arrives at once is gathered.
"""

import io
import os
import select
import sys

from foreword.cli.output import note

_PROMPT, _MORE = "> ", ". "
_PASTE_GAP_S = 0.03  # pasted lines follow each other within this; nobody types as fast


class MessageReader:
    """Reads one message after another from stdin."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._has_editor = self.is_terminal and sys.stdout.isatty() and _set_up_editor()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # bytes that are no text are no reason to stop

    def read(self) -> str | None:
        """The next message, which may be empty; None at the end of the input. Ctrl-C raises `KeyboardInterrupt`."""
        lines: list[str] = []
        while True:
            line = self._line(_MORE if lines else _PROMPT)
            if line is None:
                return "\n".join(lines) if lines else None
            goes_on = line.endswith("\\")
            lines.append(line.removesuffix("\\"))
            if not goes_on and not self._is_more_waiting():
                return "\n".join(lines)

    def _line(self, prompt: str) -> str | None:
        if self._has_editor:
            try:
                return input(prompt)
            except EOFError:
                return None
        if self.is_terminal:
            print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None

    def _is_more_waiting(self) -> bool:
        """Whether the rest of a paste stands in the terminal's queue."""
        if not self._has_editor or os.name != "posix":
            return False
        return bool(select.select([sys.stdin], [], [], _PASTE_GAP_S)[0])


def _set_up_editor() -> bool:
    """History and editing where the platform has them; `input` works without, too."""
    try:
        import readline
    except ImportError:
        note("(no readline here: lines cannot be edited or called back)")
        return True
    readline.parse_and_bind("set enable-bracketed-paste on")
    return True
