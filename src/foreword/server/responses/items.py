"""The items of an answer, and the events that tell of them while they grow. One writer for both, so that they agree.

message:        output_item.added, content_part.added, output_text.delta ..., output_text.done, content_part.done, output_item.done
function_call:  output_item.added, function_call_arguments.delta ..., function_call_arguments.done, output_item.done
"""

import secrets
from collections.abc import Sequence
from typing import Any

from foreword.server.tools.parser import CallDelta, ContentDelta, Delta
from foreword.server.tools.use import ToolUse

Event = dict[str, Any]


class ItemWriter:
    """Builds `output` from an answer's text; every call of `push` returns the events of what is new."""

    def __init__(self, tools: ToolUse) -> None:
        self._tools, self._parser = tools, tools.parser()
        self.output: list[dict[str, Any]] = []
        self._is_open = False  # the last item still grows
        self._events: list[Event] = []

    def push(self, text: str, logprobs: Sequence[Any] = ()) -> list[Event]:
        """More of the answer's text, with the log-probabilities of its tokens where they are wanted."""
        self._take([ContentDelta(text)] if self._parser is None else self._parser.feed(text), logprobs)
        return self._taken()

    def finish(self, *, is_cut: bool) -> list[Event]:
        """The answer has ended. `is_cut`: by its length, so that its last item is not whole."""
        if self._parser is not None:
            self._take(self._parser.finish(is_cut=is_cut), ())
        if not self.output:
            self._open_message()
        is_whole = self._parser is None or self._parser.is_whole
        self._close("completed" if is_whole and not is_cut else "incomplete")
        return self._taken()

    def _take(self, deltas: Sequence[Delta], logprobs: Sequence[Any]) -> None:
        for delta in deltas:
            if isinstance(delta, CallDelta):
                self._add_call(delta)
            elif delta.text:
                self._add_text(delta.text, logprobs)

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _tell(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": f"response.{kind}", "output_index": len(self.output) - 1, **fields})

    def _add_text(self, text: str, logprobs: Sequence[Any]) -> None:
        if not self._is_open or self.output[-1]["type"] != "message":
            self._close("completed")
            self._open_message()
        item = self.output[-1]
        part = item["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        self._tell("output_text.delta", item_id=item["id"], content_index=0, delta=text, logprobs=list(logprobs))

    def _open_message(self) -> None:
        item = {"id": _id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        self.output.append(item)
        self._is_open = True
        self._tell("output_item.added", item=dict(item))
        item["content"] = [_part()]
        self._tell("content_part.added", item_id=item["id"], content_index=0, part=_part())

    def _add_call(self, delta: CallDelta) -> None:
        if delta.name is not None:
            self._close("completed")
            call = {"call_id": self._tools.new_id(), "name": delta.name, "arguments": "", "status": "in_progress"}
            self.output.append({"id": _id("fc"), "type": "function_call", **call})
            self._is_open = True
            self._tell("output_item.added", item=dict(self.output[-1]))
        item = self.output[-1]
        item["arguments"] += delta.arguments
        if delta.arguments:
            self._tell("function_call_arguments.delta", item_id=item["id"], delta=delta.arguments)

    def _close(self, status: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        item = self.output[-1]
        item["status"] = status
        if item["type"] == "message":
            [part] = item["content"]
            where = {"item_id": item["id"], "content_index": 0}
            self._tell("output_text.done", **where, text=part["text"], logprobs=part["logprobs"])
            self._tell("content_part.done", **where, part=part)
        else:
            self._tell(
                "function_call_arguments.done", item_id=item["id"], arguments=item["arguments"], name=item["name"]
            )
        self._tell("output_item.done", item=item)


def _part() -> dict[str, Any]:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
