"""Streamed answers of a chat server, written by hand: what the page is given where no server runs."""

import json
from collections.abc import Sequence
from typing import Any

TOKENS = [
    ("Two", None), (" words", None), (" **and", "suffix"), (" more", "suffix"), ("**", None), (".\n\n", "ngram_lm"),
    ("```python\n", None), ("print(1)", "suffix"), ("\n```", "grammar"),
]  # fmt: skip


def events(*chunks: dict[str, Any] | str) -> dict[str, Any]:
    """As `route.fulfill` takes it."""
    lines = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return {"content_type": "text/event-stream", "body": "".join(f"data: {line}\n\n" for line in lines)}


def chunks(tokens: Sequence[tuple[str, str | None]] = TOKENS, finish: str = "stop") -> list[dict[str, Any]]:
    """One chunk per token, and what counts the drafts."""
    made = []
    for number, (text, drafter) in enumerate(tokens, start=1):
        accepted = sum(1 for _, name in tokens[:number] if name)
        speculation = {
            "tokens": [{"text": text, "drafter": drafter}],
            "steps": number - accepted - 1, "new_tokens": number,
            "drafted_tokens": 2 * accepted, "accepted_tokens": accepted,
            "drafted_at_depth": [4, 2], "accepted_at_depth": [3, 1], "saved_s": 0.25,
        }  # fmt: skip
        is_last = number == len(tokens)
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish if is_last else None}
        made.append({"choices": [choice | {"speculation": speculation}]})
    return made


def answer(tokens: Sequence[tuple[str, str | None]] = TOKENS, finish: str = "stop") -> dict[str, Any]:
    """A whole one."""
    return events(*chunks(tokens, finish), {"choices": [], "usage": {"completion_tokens": len(tokens)}}, "[DONE]")
