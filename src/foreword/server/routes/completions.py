"""`POST /v1/completions`: text, or token ids, one prompt or many."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request

from foreword.engine.result import Result
from foreword.sampling.params import SamplingParams
from foreword.server import answers
from foreword.server.errors import invalid
from foreword.server.requests import check_model, completion_params, drafting_params, predicted_ids, prompts_of
from foreword.server.served import Here, Served
from foreword.server.sse import DONE, event, paced, streaming, while_connected
from foreword.server.wire.completions import CompletionRequest

router = APIRouter()


@router.post("/v1/completions", response_model=None)
async def completions(asked: CompletionRequest, request: Request, served: Here) -> Any:
    """Continue one prompt or several, whole or streamed."""
    check_model(asked.model, served.settings)
    params, prompts = completion_params(asked, served.limits), prompts_of(asked, served.settings)
    if asked.stream:
        if len(prompts) > 1 or asked.echo:
            raise invalid("stream goes with one prompt and without echo; ask one by one", "stream")
        return await streaming(_chunks(asked, served, prompts[0], params))
    drafting, timeout_s = drafting_params(asked), served.settings.request_timeout_s
    work = served.llm.generate(prompts, params, drafting=drafting, timeout_s=timeout_s)
    results = await while_connected(request, work)
    return await asyncio.to_thread(_answer, asked, served, results)


def _answer(asked: CompletionRequest, served: Served, results: Sequence[Result]) -> dict[str, Any]:
    choices = [_choice(place, result, asked, served) for place, result in enumerate(results)]
    return {
        **served.head("cmpl", "text_completion"),
        "choices": choices,
        "usage": answers.usage(results, predicted_ids(asked, served.tokenizer)),
    }


def _choice(index: int, result: Result, asked: CompletionRequest, served: Served) -> dict[str, Any]:
    prompt_text = served.tokenizer.decode(result.prompt_token_ids, skip_special_tokens=True) if asked.echo else ""
    choice: dict[str, Any] = {
        "index": index,
        "text": prompt_text + result.text,
        "logprobs": None,
        "finish_reason": answers.finish_reason(result),
    }
    if result.logprobs is not None:
        entries, ids = [*(result.prompt_logprobs or ()), *result.logprobs], result.token_ids
        if asked.echo:
            ids = [*result.prompt_token_ids, *ids]
        offsets = answers.Offsets(served.tokenizer)
        choice["logprobs"] = answers.completion_logprobs(entries, ids, served.tokenizer, offsets)
    answers.add_details(choice, asked, result, served.tokenizer)
    if asked.return_token_ids:
        choice["prompt_token_ids"] = result.prompt_token_ids
    return choice


async def _chunks(
    asked: CompletionRequest, served: Served, prompt: str | list[int], params: SamplingParams
) -> AsyncIterator[str]:
    head = served.head("cmpl", "text_completion")
    timeout_s = served.settings.request_timeout_s
    stream = served.llm.stream(prompt, params, drafting=drafting_params(asked), timeout_s=timeout_s)
    results: list[Result] = []
    details = [answers.PieceDetails(asked, served.tokenizer) for _ in range(params.n)]
    offsets = [answers.Offsets(served.tokenizer) for _ in range(params.n)]
    try:
        await stream.start()
        async for piece in paced(stream, served.settings.stream_pause_s / params.n):
            index, reason = piece.sample_index, None
            if piece.result is not None:
                results.append(piece.result)
                reason = answers.finish_reason(piece.result)
            choice: dict[str, Any] = {"index": index, "text": piece.text, "logprobs": None, "finish_reason": reason}
            if piece.logprobs:
                choice["logprobs"] = answers.completion_logprobs(
                    piece.logprobs, piece.token_ids, served.tokenizer, offsets[index]
                )
            details[index].add(choice, piece)
            yield event(head | {"choices": [choice]})
        if asked.stream_options is not None and asked.stream_options.include_usage:
            yield event(head | {"choices": [], "usage": answers.usage(results)})
        yield DONE
    finally:
        await stream.aclose()
