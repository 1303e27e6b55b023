"""What goes wrong, as the status and the error object of the OpenAI API."""

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from foreword.errors import (
    CapacityError,
    CheckpointError,
    ClosedError,
    ConfigError,
    ForewordError,
    PromptTooLongError,
    QueueFullError,
    UnsupportedModelError,
)
from foreword.server.wire.common import SamplingFields

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1
_STATUS_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """A refusal with its status.

    Args:
        status: of HTTP.
        message: says what is wrong, what is allowed, and what to do.
        param: the field of the request that it is about.
        code: a name for programs.
        retry_after_s: when to ask again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = _STATUS_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The answer of HTTP."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return JSONResponse(self.body, self.status, headers)


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that asks for what cannot be done."""
    return ApiError(400, message, param=param, code=code)


def as_api_error(error: Exception) -> ApiError:
    """The refusal for any error that may reach a client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLongError):
        return invalid(str(error), code="context_length_exceeded")
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, ConfigError):
        return invalid(str(error), _field_of(str(error)))
    if isinstance(error, UnsupportedModelError | CheckpointError):
        return invalid(str(error))
    if isinstance(error, CapacityError):
        return ApiError(400, str(error), code="out_of_memory")
    if isinstance(error, ClosedError):
        return ApiError(503, str(error), code="closed", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, ForewordError):
        return ApiError(500, str(error))
    logger.error("a request failed", exc_info=error)
    return ApiError(500, f"the server failed ({type(error).__name__}); its log says more")


def _field_of(message: str) -> str | None:
    """The field of a request that a message of the library is about: it begins with its name."""
    first = message.removeprefix("a token id of ").partition(" ")[0].rstrip(":,")
    return first if first in SamplingFields.model_fields or first in ("logprobs", "prompt") else None


def add_handlers(app: FastAPI) -> None:
    """Let an application answer errors so."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        refused = as_api_error(error)
        if refused.param is None and isinstance(error, PromptTooLongError):
            refused.param = _PROMPT_FIELDS.get(request.url.path, "messages")
        return refused.response()

    async def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return ApiError(error.status_code, str(error.detail)).response()

    async def body(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return _invalid_body(error).response()

    app.add_exception_handler(RequestValidationError, body)
    app.add_exception_handler(HTTPException, http)
    for kind in (ApiError, ForewordError):
        app.add_exception_handler(kind, known)


def _invalid_body(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body."""
    first, *others = error.errors()
    if first["type"] == "json_invalid":
        return invalid(f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    place = tuple(part for part in first["loc"] if part != "body")
    for depth, part in enumerate(place):
        if part in _ALTERNATIVES:  # a field that takes more than one kind of value: one error for each
            named = [part, *(one["loc"][depth + 1] for one in others if one["loc"][1 : depth + 1] == place[:depth])]
            allowed = dict.fromkeys(_ALTERNATIVES.get(kind, "an object") for kind in named)
            name = _name(place[:depth])
            return invalid(f"{name} is none of what it may be: {', or '.join(allowed)}", name)
    name = _name(place)
    return invalid(f"{name or 'the body'}: {first['msg'].lower()}", name or None)


_PROMPT_FIELDS = {"/v1/completions": "prompt", "/v1/responses": "input"}
_ALTERNATIVES = {  # as pydantic names them
    "str": "a text",
    "bool": "true or false",
    "dict[str,any]": "an object",
    "list[InputItem]": "a list of items",
    "list[str]": "a list of texts",
    "list[TextPart]": "a list of parts of type text",
    "list[constrained-int]": "a list of token ids, 0 or above",
    "list[list[constrained-int]]": "a list of such lists",
}


def _name(place: Sequence[str | int]) -> str:
    """As in `messages[0].content`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
