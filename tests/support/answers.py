"""Streamed answers of a chat server, written by hand: what the page is given where no server runs."""

import json
from collections.abc import Sequence
from typing import Any

TOKENS = [
    ("Two", None), (" words", None), (" **and", "suffix"), (" more", "suffix"), ("**", None), (".\n\n", "ngram_lm"),
    ("```python\n", None), ("print(1)", "suffix"), ("\n```", "grammar"),
]  # fmt: skip

STATUS = {
    "model": {"name": "toy", "runtime": "native", "dtype": "int8", "drafter": "auto", "context_len": 128, "batch_size": 8},
    "memory": {"process_bytes": 3 << 28, "kv_cache_limit_bytes": 1 << 33},
    "engine": {
        "num_running": 0, "num_waiting": 2, "kv_cache_bytes": 1 << 25, "prefix_cache_bytes": 1 << 20, "num_steps": 10,
        "prompt_tokens": 10, "cached_tokens": 5, "generated_tokens": 25, "prefix_cache_queries": 2, "prefix_cache_hits": 1,
        "prefix_cache_evictions": 0, "finished": {"stop": 1, "length": 2},
        "drafters": {"auto": {"drafted_tokens": 20, "accepted_tokens": 5, "drafted_at_depth": [9, 2], "accepted_at_depth": [4, 1]}},
        **{name: {"counts": [0, 3], "total_s": 0.3} for name in ("time_to_first_token", "time_between_tokens", "queue_time")},
    },
    "uptime_s": 90.0, "version": "0.1.0",
}  # fmt: skip


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
        choice = {
            "token_ids": [number],
            "index": 0,
            "delta": {"content": text},
            "finish_reason": finish if is_last else None,
        }
        made.append({"choices": [choice | {"speculation": speculation}]})
    return made


def answer(tokens: Sequence[tuple[str, str | None]] = TOKENS, finish: str = "stop") -> dict[str, Any]:
    """A whole one."""
    return events(*chunks(tokens, finish), {"choices": [], "usage": {"completion_tokens": len(tokens)}}, "[DONE]")
