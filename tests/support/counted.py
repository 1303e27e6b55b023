"""What code does, counted instead of timed: the same figure on a busy machine and on an idle one."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import foreword

_SOURCE = str(Path(foreword.__file__).parent)


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of foreword run while `work` does; a loop's count as often as it turns."""
    count = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_SOURCE) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
