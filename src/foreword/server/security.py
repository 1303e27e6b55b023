"""What every request must pass before a route sees it: host, origin, key, and a body of bounded size in bounded time."""

import asyncio
import hmac
from urllib.parse import SplitResult, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foreword.server.errors import ApiError, ClientGone, as_api_error
from foreword.server.settings import ServerSettings
from foreword.server.strict_json import check_json

_OPEN_PATHS = frozenset({"/", "/health"})  # the page itself says nothing of the model; a probe has no key


class Guard:
    """Middleware that refuses what is not meant for this server, or is too much.

    Args:
        app: what answers the rest.
        settings: whom it answers.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = _headers(scope)
            self._check_place(headers)
            self._check_key(scope["path"], headers)
            _check_kind(scope["method"], headers)
            body = await self._body(headers, receive)
            if body:
                check_json(body)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        if body is not None:
            await self._answer(scope, _replayed(body, receive), send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on. What fails unforeseen is a 500 on a connection that stays, unless the answer had begun."""
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientGone:
            return
        except Exception as error:
            if has_begun:
                raise
            await as_api_error(error).response()(scope, receive, send)

    def _check_place(self, headers: dict[str, str]) -> None:
        host = _host_of(headers.get("host", ""))
        if not self._settings.allows_host(host):
            raise ApiError(
                403, f"this server is not called {host!r}; if it is, start it with --allowed-host {host or 'NAME'}"
            )
        origin = headers.get("origin")
        if origin is None or origin in self._settings.allowed_origins:
            return
        if _parts(origin).netloc.lower() != headers.get("host", "").lower():
            raise ApiError(403, f"pages of {origin} may not ask this server; start it with --allowed-origin {origin}")

    def _check_key(self, path: str, headers: dict[str, str]) -> None:
        wanted = self._settings.api_key
        if wanted is None or path in _OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            what = "is wrong" if given else "is missing"
            raise ApiError(401, f"the API key {what}; send it as 'Authorization: Bearer KEY'", code="invalid_api_key")

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | None:
        """The whole body; None where the client went away."""
        limit = self._settings.max_body_bytes
        if (length := headers.get("content-length", "")).isdecimal() and int(length[:20]) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise _too_large(limit)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            seconds = self._settings.body_timeout_s
            raise ApiError(408, f"the request did not arrive within {seconds:g} s; send it again") from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then what else the client does."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return parts.pop() if parts else await receive()

    return next_message


def _check_kind(method: str, headers: dict[str, str]) -> None:
    """Only JSON: a form of another site's page could send anything else without being asked."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and kind != "application/json":
        raise ApiError(
            415,
            f"the body is {kind or 'of no stated type'}; send JSON, with the header 'Content-Type: application/json'",
        )


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _host_of(header: str) -> str:
    """Without the port."""
    return (_parts(f"//{header}").hostname or "").lower()


def _parts(address: str) -> SplitResult:
    """Of an address; empty ones where it is none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {limit} bytes; shorten it, or start the server with --max-body-bytes"
    )
