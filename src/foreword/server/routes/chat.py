"""`POST /v1/chat/completions`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request

from foreword.engine.result import Piece, Result
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.server import answers
from foreword.server.requests import chat_ids, chat_params, check_model, drafting_params, predicted_ids
from foreword.server.served import Here, Served
from foreword.server.sse import DONE, event, paced, streaming, while_connected
from foreword.server.tools.use import DeltaWriter, ToolUse, tool_use
from foreword.server.wire.chat import ChatRequest

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(asked: ChatRequest, request: Request, served: Here) -> Any:
    """Answer a conversation, whole or streamed."""
    check_model(asked.model, served.settings)
    tools = tool_use(asked.tools, asked.tool_choice, asked.parallel_tool_calls, served.tokenizer)
    params, drafting = chat_params(asked, served.limits, tools), drafting_params(asked)
    prompt = await asyncio.to_thread(chat_ids, asked, served.tokenizer, tools)
    if asked.stream:
        return await streaming(_chunks(asked, served, prompt, params, drafting, tools))
    timeout_s = served.settings.request_timeout_s
    work = served.llm.generate(prompt, params, drafting=drafting, timeout_s=timeout_s)
    results = await while_connected(request, work)
    return await asyncio.to_thread(_answer, asked, served, results, tools)


def _answer(asked: ChatRequest, served: Served, results: list[Result], tools: ToolUse) -> dict[str, Any]:
    choices = []
    for result in results:
        content, calls, is_whole = tools.read(result.text, is_cut=result.finish_reason != "stop")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
        choice: dict[str, Any] = {
            "index": result.sample_index,
            "message": message,
            "logprobs": None,
            "finish_reason": answers.finish_reason(result, has_calls=bool(calls) and is_whole),
        }
        if result.logprobs is not None:
            choice["logprobs"] = answers.chat_logprobs(result.logprobs, served.tokenizer)
        answers.add_details(choice, asked, result, served.tokenizer)
        choices.append(choice)
    return {
        **served.head("chatcmpl", "chat.completion"),
        "choices": choices,
        "usage": answers.usage(results, predicted_ids(asked, served.tokenizer)),
    }


async def _chunks(
    asked: ChatRequest,
    served: Served,
    prompt: list[int],
    params: SamplingParams,
    drafting: DraftingParams,
    tools: ToolUse,
) -> AsyncIterator[str]:
    head = served.head("chatcmpl", "chat.completion.chunk")
    stream = served.llm.stream(prompt, params, drafting=drafting, timeout_s=served.settings.request_timeout_s)
    results: list[Result] = []
    details = [answers.PieceDetails(asked, served.tokenizer) for _ in range(params.n)]
    writers = [DeltaWriter(tools) for _ in range(params.n)]
    try:
        await stream.start()
        for index in range(params.n):
            delta = {"role": "assistant", "content": ""}
            yield event(head | {"choices": [_choice(index, delta)]})
        async for piece in paced(stream, served.settings.stream_pause_s / params.n):
            index = piece.sample_index
            choice = _choice(index, *_delta(writers[index], piece))
            if piece.logprobs:
                choice["logprobs"] = answers.chat_logprobs(piece.logprobs, served.tokenizer)
            details[index].add(choice, piece)
            yield event(head | {"choices": [choice]})
            if piece.result is not None:
                results.append(piece.result)
        if asked.stream_options is not None and asked.stream_options.include_usage:
            used = await asyncio.to_thread(answers.usage, results, predicted_ids(asked, served.tokenizer))
            yield event(head | {"choices": [], "usage": used})
        yield DONE
    finally:
        await stream.aclose()


def _delta(writer: DeltaWriter, piece: Piece) -> tuple[dict[str, Any], str | None]:
    """What is new of an answer, and why it ended, if it did."""
    if piece.result is None:
        return writer.push(piece.text), None
    delta = writer.push(piece.text, ends=True, is_cut=piece.result.finish_reason != "stop")
    return delta, answers.finish_reason(piece.result, has_calls=writer.has_calls)


def _choice(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
