"""`POST /v1/responses`, without a memory: nothing is stored, and every request brings all that it is about."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request

from foreword.engine.result import Result
from foreword.server import answers
from foreword.server.errors import as_api_error
from foreword.server.requests import chat_ids, chat_params, check_model, drafting_params, predicted_ids
from foreword.server.responses.asked import as_chat
from foreword.server.responses.head import ended, response_object
from foreword.server.responses.items import ItemWriter
from foreword.server.served import Here, Served
from foreword.server.sse import event, paced, streaming, while_connected
from foreword.server.tools.use import ToolUse, tool_use
from foreword.server.wire.chat import ChatRequest
from foreword.server.wire.responses import ResponsesRequest

router = APIRouter()


@router.post("/v1/responses", response_model=None)
async def responses(asked: ResponsesRequest, request: Request, served: Here) -> Any:
    """Answer, whole or as typed events."""
    check_model(asked.model, served.settings)
    chat = as_chat(asked)
    tools = tool_use(chat.tools, chat.tool_choice, chat.parallel_tool_calls, served.tokenizer)
    params, drafting = chat_params(chat, served.limits, tools), drafting_params(chat)
    prompt = await asyncio.to_thread(chat_ids, chat, served.tokenizer, tools)
    head = response_object(asked, params, served.settings.model_name, f"resp_{secrets.token_hex(12)}")
    timeout_s = served.settings.request_timeout_s
    if asked.stream:
        stream = served.llm.stream(prompt, params, drafting=drafting, timeout_s=timeout_s)
        return await streaming(_events(stream, head, chat, served, tools))
    work = served.llm.generate(prompt, params, drafting=drafting, timeout_s=timeout_s)
    [result] = await while_connected(request, work)
    return await asyncio.to_thread(_answer, result, head, chat, served, tools)


def _answer(result: Result, head: dict[str, Any], chat: ChatRequest, served: Served, tools: ToolUse) -> dict[str, Any]:
    writer = ItemWriter(tools)
    writer.push(result.text, _logprobs(result.logprobs, served))
    writer.finish(is_cut=result.finish_reason != "stop")
    return head | _ended(result, writer, chat, served)


def _ended(result: Result, writer: ItemWriter, chat: ChatRequest, served: Served) -> dict[str, Any]:
    made = ended(result, writer.output, predicted_ids(chat, served.tokenizer))
    if chat.include_speculation:
        made["speculation"] = answers.result_speculation(result, served.tokenizer)
    return made


def _logprobs(logprobs: Any, served: Served) -> list[Any]:
    return answers.chat_logprobs(logprobs, served.tokenizer)["content"] if logprobs else []


async def _events(
    stream: Any, head: dict[str, Any], chat: ChatRequest, served: Served, tools: ToolUse
) -> AsyncIterator[str]:
    number = 0

    def numbered(one: dict[str, Any]) -> str:
        nonlocal number
        number += 1
        return event({"sequence_number": number - 1, **one}, one["type"])

    writer = ItemWriter(tools)
    try:
        await stream.start()  # what is wrong with the request is told with a status
        for kind in ("response.created", "response.in_progress"):
            yield numbered({"type": kind, "response": head})
        try:
            async for piece in paced(stream, served.settings.stream_pause_s):
                for one in writer.push(piece.text, _logprobs(piece.logprobs, served)):
                    yield numbered(one)
                if piece.result is not None:
                    for one in writer.finish(is_cut=piece.result.finish_reason != "stop"):
                        yield numbered(one)
                    done = head | await asyncio.to_thread(_ended, piece.result, writer, chat, served)
                    yield numbered({"type": f"response.{done['status']}", "response": done})
        except Exception as error:
            reason = {"code": "server_error", "message": as_api_error(error).message}
            failed = head | {"status": "failed", "error": reason, "output": writer.output}
            yield numbered({"type": "response.failed", "response": failed})
    finally:
        await stream.aclose()
