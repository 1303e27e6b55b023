"""Requests to the server that are wrong in all ways, and what answers to them must look like.

A case is a valid request in which something was changed: in the body's values, in its bytes, in the headers, or in how it is
sent. Whatever it is, the answer is a right one or says with 4xx what is wrong.
"""

import asyncio
import copy
import json
import random
import string
from dataclasses import dataclass, field
from typing import Any

TOOL = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {"x": {"type": "boolean"}}}},
}
HELLO = [{"role": "user", "content": "ab"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}

# Path, body. Every field that the server knows is in one of them.
VALID: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "tiny", "messages": HELLO, "max_tokens": 3}),
    (
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]}, *HELLO],
            "max_completion_tokens": 3,
            "n": 2,
            "stop": ["zz"],
            "seed": 1,
            "temperature": 0.5,
            "top_p": 0.9,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.1,
            "logit_bias": {"5": 1.0},
            "logprobs": True,
            "top_logprobs": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": "me",
            "chat_template_kwargs": {"a": 1},
            "include_speculation": True,
            "return_token_ids": True,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                *HELLO,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"x": true}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "noon"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "now"}},
            "parallel_tool_calls": False,
            "max_tokens": 3,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": HELLO,
            "max_tokens": 3,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}},
            "prediction": {"type": "content", "content": "ab"},
            "speculative": {"enabled": True, "num_speculative_tokens": 2},
            "stream": True,
        },
    ),
    ("/v1/completions", {"prompt": "ab", "max_tokens": 3}),
    (
        "/v1/completions",
        {
            "model": "tiny",
            "prompt": ["ab", "cd"],
            "max_tokens": 3,
            "echo": True,
            "logprobs": 2,
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "min_tokens": 1,
            "ignore_eos": True,
            "stop_token_ids": [7],
            "allowed_token_ids": [40, 41, 42, 43],
            "bad_words": ["zz"],
            "best_of": 1,
        },
    ),
    ("/v1/completions", {"prompt": [40, 41, 42], "max_tokens": 3, "structured_outputs": {"regex": "[ab]+"}, "stream": True}),
    ("/v1/completions", {"prompt": [[40], [41]], "max_tokens": 2, "guided_choice": ["a", "b"]}),
    (
        "/v1/responses",
        {
            "model": "tiny",
            "instructions": "Be short.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "ab"}]},
                {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "noon"},
            ],
            "max_output_tokens": 3,
            "temperature": 0.5,
            "top_p": 0.9,
            "tools": [{"type": "function", **TOOL["function"]}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "metadata": {"a": "b"},
            "stream": True,
        },
    ),
    (
        "/v1/responses",
        {
            "input": "ab",
            "max_output_tokens": 3,
            "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
            "user": "me",
        },
    ),
    ("/tokenize", {"prompt": "ab", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"messages": HELLO, "add_generation_prompt": True}),
    ("/detokenize", {"tokens": [40, 41]}),
]  # fmt: skip
NESTED: Any = [[[[[[[[[[{"a": [[{"b": [None]}]]}]]]]]]]]]]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 255, 1e308, -1e308, 0.5, float("nan"), float("inf"), float("-inf"), 2**31,
    2**63, 2**64, -(2**63),
    10**30, 10**290, 10**400, "", " ", "a", "x" * 3000, "\ud800", "\udfff\ud800", "\x00", "\r\n", "\u202e", "🦄", "é世", "null", "1",
    "-1", "nan", "../../etc/passwd",
    "{{ 7 * 7 }}", "<tool_call>", "(a+)+$", "[TOOL_CALLS]", "<end>", [], [None], [[]], ["a", 1], [1.5], ["\ud800"],
    [0] * 200, {}, {"a": None},
    {"type": None}, {"type": "object"}, {"$ref": "#"}, {"type": "function"}, {"type": "text", "text": "a"},
    {"": ""}, {"\ud800": 1}, NESTED,
]  # fmt: skip
ODD_BYTES = [
    b"", b"\x00", b"null", b"[]", b"3", b'"a"', b"{", b"{}", b'{"a":}', b"\xef\xbb\xbf{}", b"\xff\xfe", b"NaN",
    b"[" * 60000, b'{"a":' * 30000,
    b"1" * 6000, b'{"max_tokens":' + b"9" * 6000 + b"}", b'{"messages":"' + b"\xed\xa0\x80" + b'"}', b"a=1&b=2",
    b"<xml/>",
]  # fmt: skip
HEADERS: list[tuple[bytes, bytes]] = [
    (b"Host", b"evil.example"), (b"Host", b""), (b"Host", b"[::1"), (b"Host", b"127.0.0.1:99999"), (b"Origin",
    b"http://evil.example"),
    (b"Origin", b"null"), (b"Origin", b"\xff"), (b"Content-Type", b"text/plain"), (b"Content-Type", b""),
    (b"Content-Type", b"application/json; charset=utf-16"),
    (b"Content-Type", b"multipart/form-data; boundary=x"), (b"Authorization", b"Bearer \xff\xfe"),
    (b"Authorization", b"Basic YTpi"),
    (b"Content-Encoding", b"gzip"), (b"Expect", b"100-continue"), (b"Upgrade", b"websocket"), (b"Connection",
    b"Upgrade"), (b"X-A", b"b" * 9000),
    (b"Cookie", b"a=" + b"b" * 3000), (b"Accept", b"text/event-stream"), (b"Transfer-Encoding", b"gzip"),
    (b"Range", b"bytes=0-1"), (b"A" * 300, b"b"),
    (b"Accept-Encoding", b"br;q=x"), (b"Content-Length", b"-1"), (b"Content-Length", b"99999999999999999999"),
    (b"Content-Length", b"1e3"), (b"bad header", b"x"),
]  # fmt: skip
PATHS = [
    "/", "/health", "/version", "/metrics", "/v1/models", "/v1/models/tiny", "/v1/models/none", "/v1/models/%ff",
    "/v1/status", "/v1/../etc/passwd", "/%2e%2e/x",
    "//", "/v1/chat/completions/", "/v1/chat/completions?x=%00", "/v1/embeddings", "*", "/v1/models/" + "a" * 5000,
    "/docs", "/openapi.json",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One request, as bytes."""

    what: str  # for a report
    raw: bytes
    is_intact: bool = False  # nothing was changed: 200


@dataclass
class Answer:
    """What came back."""

    status: int = 0  # 0: the connection was closed without one
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def case(rng: random.Random) -> Case:
    """A random one."""
    path, body = rng.choice(VALID)
    body = copy.deepcopy(body)
    kind = rng.choices(["values", "bytes", "headers", "sending", "path", "intact"], [60, 12, 12, 8, 6, 2])[0]
    if kind == "values":
        changes = [_change(body, rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        return Case(f"{path}: {'; '.join(changes)}"[:600], request(path, _json(body)))
    if kind == "bytes":
        return Case(f"{path}: bytes", request(path, _bytes(_json(body), rng)))
    if kind == "headers":
        extra = rng.sample(HEADERS, rng.choice([1, 1, 2]))
        return Case(f"{path}: headers {extra}"[:300], request(path, _json(body), extra))
    if kind == "sending":
        return _sent_otherwise(path, _json(body), rng)
    if kind == "path":
        method = rng.choice(["GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "FOO", "get"])
        where = rng.choice([*PATHS, path])
        return Case(f"{method} {where[:80]}", request(where, b"" if method == "GET" else _json(body), method=method))
    return Case(f"{path}: intact", request(path, _json(body)), is_intact=True)


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values below a body."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, below in keys:
        found += [(*path, key), *_places(below, (*path, key))]
    return found


def _change(body: dict[str, Any], rng: random.Random) -> str:
    places = _places(body)
    if not places:
        return "nothing left"
    place = rng.choice(places)
    parent: Any = body
    for key in place[:-1]:
        parent = parent[key]
    key, how = place[-1], rng.choice(["odd", "odd", "odd", "delete", "wrap", "add", "swap"])
    if how == "delete":
        del parent[key]
    elif how == "wrap":
        parent[key] = rng.choice([[parent[key]], {"a": parent[key]}, [parent[key]] * 3])
    elif how == "add" and isinstance(parent, dict):
        names = ["a", "extra", "", "n", "schema", "__class__", *(name for _, other in VALID for name in other)]
        parent[rng.choice(names)] = rng.choice(ODD)
    elif how == "swap":
        other: Any = rng.choice(VALID)[1]
        parent[key] = copy.deepcopy(rng.choice(list(other.values())))
    else:
        parent[key] = copy.deepcopy(rng.choice(ODD))
    return f"{how} {'.'.join(map(str, place))} -> {str(parent[key] if how == 'odd' else '')[:60]!a}"


def _bytes(body: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(body))
    how = rng.randrange(8)
    if how == 0:
        return rng.choice(ODD_BYTES)
    if how == 1:
        return body[:at]
    if how == 2:
        return body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
    if how == 3:
        return body[:at] + rng.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\\u0000", b"\\ud800"]) + body[at:]
    if how == 4:
        return body[:-1] + b"," + body[1:]  # every key twice
    if how == 5:
        return body.decode().encode(rng.choice(["utf-16", "utf-32", "utf-16-be"]))
    if how == 6:
        return body + rng.choice([b"x", b"{}", b"\n\n", b"\x00", body])
    letters = string.printable.encode()
    return bytes(rng.choice(letters) for _ in range(rng.randrange(200)))


def _sent_otherwise(path: str, body: bytes, rng: random.Random) -> Case:
    how = rng.choice(
        [
            "chunked",
            "bad chunk",
            "short",
            "long",
            "http/1.0",
            "http/2",
            "garbage",
            "pipelined",
            "no host",
            "both lengths",
        ]
    )
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n".encode()
    )
    cut = rng.randrange(len(body))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part) + b"0\r\n\r\n"
    ways = {
        "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        "bad chunk": head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + chunks,
        "short": head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:cut],
        "long": head + b"Content-Length: %d\r\n\r\n" % cut + body,
        "http/1.0": head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + body,
        "garbage": bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300))) + b"\r\n\r\n",
        "pipelined": request("/health", b"", method="GET", closes=False) + request(path, body),
        "no host": head.replace(b"Host: 127.0.0.1\r\n", b"") + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        "both lengths": head + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks,
    }
    how = rng.choice(list(ways))
    return Case(f"{path}: {how}", ways[how])


def request(
    path: str,
    body: bytes,
    extra: list[tuple[bytes, bytes]] | None = None,
    *,
    method: str = "POST",
    closes: bool = True,
) -> bytes:
    """A request of HTTP/1.1. An extra header takes the place of one with its name."""
    headers = {b"Host": b"127.0.0.1", b"Content-Type": b"application/json", b"Content-Length": b"%d" % len(body)}
    headers |= {b"Connection": b"close"} if closes else {}
    headers |= dict(extra or ())
    lines = [f"{method} {path} HTTP/1.1".encode(), *(name + b": " + value for name, value in headers.items())]
    return b"\r\n".join([*lines, b"", body])


async def send(port: int, raw: bytes, timeout_s: float = 60.0) -> Answer:
    """What a server of this machine answers. `TimeoutError` where it says nothing more and keeps the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        writer.write(raw)
        async with asyncio.timeout(timeout_s):
            while part := await reader.read(1 << 16):
                received += part
    except (ConnectionError, BrokenPipeError):
        pass  # it had said what it had to say
    finally:
        writer.close()
    return _parsed(received)


def _parsed(received: bytes) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if not lines[0].startswith("HTTP/1."):
        return Answer()
    if " 100 " in lines[0]:  # go on, says the server; the answer follows
        return _parsed(body)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunked(body)
    elif "content-length" in headers:
        length = int(headers["content-length"])
        body, rest = body[:length], body[length:]
        if rest:  # the connection carried several requests, or what was taken for them
            return max(Answer(int(lines[0].split()[1]), headers, body), _parsed(rest), key=lambda one: one.status)
    return Answer(int(lines[0].split()[1]), headers, body)


def _unchunked(body: bytes) -> bytes:
    whole, rest = b"", body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        whole, rest = whole + rest[:length], rest[length + 2 :]
    return whole


def fault(sent: Case, answer: Answer) -> str | None:
    """What is wrong with an answer; None for a right one."""
    text = answer.body.decode("utf-8", "replace")
    if answer.status == 0:
        return (
            None
            if sent.what.endswith(("garbage", "short", "http/2"))
            else "the connection was closed without an answer"
        )
    if answer.status >= 500:
        return f"status {answer.status}: {text[:300]}"
    if "Traceback" in text or 'File "' in text:
        return f"a traceback: {text[:300]}"
    if sent.is_intact and answer.status != 200:
        return f"a valid request got {answer.status}: {text[:300]}"
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return _stream_fault(text)
    if kind.startswith("application/json") and text:
        try:
            found = json.loads(text)
        except ValueError:
            return f"not JSON: {text[:200]}"
        if answer.status >= 400 and not (found.get("error") or {}).get("message"):
            return f"a refusal without an error object: {text[:200]}"
    return None


def _stream_fault(text: str) -> str | None:
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    if not data:
        return "a stream without events"
    for one in data:
        if one == "[DONE]":
            continue
        try:
            found = json.loads(one)
        except ValueError:
            return f"an event that is not JSON: {one[:200]}"
        if found.get("type") == "response.failed" or (found.get("error") or {}).get("type") == "server_error":
            return f"a stream that failed: {one[:300]}"
    ends = data[-1] == "[DONE]" or json.loads(data[-1]).get("type") in ("response.completed", "response.incomplete")
    return None if ends else f"a stream without an end: {data[-1][:200]}"
