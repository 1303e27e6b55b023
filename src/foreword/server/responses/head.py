"""The response object: what was asked, how it went, and what it cost."""

import time
from collections.abc import Sequence
from typing import Any

from foreword.engine.result import Result
from foreword.sampling.params import SamplingParams
from foreword.server import answers
from foreword.server.wire.responses import ResponsesRequest


def response_object(asked: ResponsesRequest, params: SamplingParams, model: str, response_id: str) -> dict[str, Any]:
    """A response that has begun."""
    text = {"format": {"type": "text"}}
    if asked.text is not None and asked.text.format is not None:
        text = {"format": asked.text.format.model_dump(by_alias=True, exclude_none=True)}
    choice = asked.tool_choice
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": params.temperature,
        "text": text,
        "tool_choice": choice if isinstance(choice, str) else "auto" if choice is None else choice.model_dump(),
        "tools": [{"parameters": None, "strict": None, **t.model_dump(exclude_none=True)} for t in asked.tools or ()],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": asked.user,
    }


def ended(result: Result, output: list[dict[str, Any]], predicted_ids: Sequence[int] | None) -> dict[str, Any]:
    """What changes of it once its answer has ended."""
    is_whole = result.finish_reason == "stop"
    return {
        "status": "completed" if is_whole else "incomplete",
        "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
        "output": output,
        "usage": _usage(result, predicted_ids),
    }


def _usage(result: Result, predicted_ids: Sequence[int] | None) -> dict[str, Any]:
    used = answers.usage([result], predicted_ids)
    return {
        "input_tokens": used["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **used["prompt_tokens_details"]},
        "output_tokens": used["completion_tokens"],
        "output_tokens_details": used["completion_tokens_details"],
        "total_tokens": used["total_tokens"],
    }
