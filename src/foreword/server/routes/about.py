"""What a server says of itself: models, health, version, tokens, metrics, status; and its page."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse, JSONResponse

import foreword
from foreword.errors import ClosedError
from foreword.server.errors import invalid
from foreword.server.metrics import CONTENT_TYPE, metrics_text
from foreword.server.page.bundle import page
from foreword.server.requests import check_model, conversation_ids, message_of
from foreword.server.served import Here, Served
from foreword.server.status import status_of
from foreword.server.wire.completions import DetokenizeRequest, TokenizeRequest

router = APIRouter()


@router.api_route("/", methods=["GET", "HEAD"], response_class=HTMLResponse)
async def show_page() -> HTMLResponse:
    """The chat in a browser."""
    found = page()
    return HTMLResponse(
        found.html,
        headers={
            "Content-Security-Policy": found.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        },
    )


@router.api_route("/health", methods=["GET", "HEAD"], response_model=None)
async def health(served: Here) -> JSONResponse:
    """200 while requests are answered, 503 once the engine has ended."""
    refusal = served.llm.refusal
    if refusal is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse(
        {"status": "closed" if isinstance(refusal, ClosedError) else "failed", "reason": str(refusal)}, 503
    )


@router.get("/version")
async def version() -> dict[str, str]:
    """Of foreword."""
    return {"version": foreword.__version__}


@router.get("/v1/models")
async def models(served: Here) -> dict[str, Any]:
    """The one model."""
    return {"object": "list", "data": [_model(served)]}


@router.get("/v1/models/{name:path}")
async def model(name: str, served: Here) -> dict[str, Any]:
    """The one model, by name."""
    check_model(name, served.settings)
    return _model(served)


def _model(served: Served) -> dict[str, Any]:
    return {
        "id": served.settings.model_name,
        "object": "model",
        "created": int(served.started_s),
        "owned_by": "foreword",
        "max_model_len": served.llm.model.checkpoint.spec.context_len,
    }


@router.post("/tokenize")
async def tokenize(asked: TokenizeRequest, served: Here) -> dict[str, Any]:
    """Token ids of a text or of messages."""
    check_model(asked.model, served.settings)
    if (asked.prompt is None) == (asked.messages is None):
        raise invalid("give one of prompt and messages", "prompt")
    ids = await asyncio.to_thread(_ids, asked, served)
    found = {"count": len(ids), "max_model_len": served.llm.model.checkpoint.spec.context_len, "tokens": ids}
    if asked.return_token_strs:
        found["token_strs"] = [served.tokenizer.decode([token], skip_special_tokens=False) for token in ids]
    return found


def _ids(asked: TokenizeRequest, served: Served) -> list[int]:
    if asked.messages is None:
        return served.tokenizer.encode(asked.prompt or "", add_special_tokens=asked.add_special_tokens)
    messages = [message_of(message, place) for place, message in enumerate(asked.messages)]
    options = asked.chat_template_kwargs or {}
    return conversation_ids(messages, served.tokenizer, options, opens_turn=asked.add_generation_prompt)


@router.post("/detokenize")
async def detokenize(asked: DetokenizeRequest, served: Here) -> dict[str, str]:
    """The text of token ids, special tokens included."""
    check_model(asked.model, served.settings)
    size = served.llm.model.checkpoint.spec.vocab_size
    if wrong := [token for token in asked.tokens if token >= size]:
        raise invalid(f"token {wrong[0]} is outside the vocabulary; allowed: 0 to {size - 1}", "tokens")
    return {"prompt": await asyncio.to_thread(served.tokenizer.decode, asked.tokens, False)}


@router.get("/metrics")
async def metrics(served: Here) -> Response:
    """For Prometheus."""
    return Response(metrics_text(served.llm.snapshot(), served.settings.model_name), media_type=CONTENT_TYPE)


@router.get("/v1/status")
async def status(served: Here) -> dict[str, Any]:
    """The engine's counters and the machine's memory, for the page."""
    return status_of(served, time.time())
