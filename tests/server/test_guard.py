"""Whom the server answers, how much it reads, and that an open address needs a key."""

import asyncio

import pytest

from foreword.errors import ConfigError
from foreword.server.settings import ServerSettings
from tests.support.serving import BASE, HELLO, client_of, toy_app

BODY = {"messages": HELLO, "max_tokens": 2}


def ask(app, headers=None, body=BODY, path="/v1/chat/completions", **options):
    async def run():
        async with client_of(app) as client:
            if body is None:
                return await client.get(path, headers=headers, **options)
            return await client.post(path, headers=headers, json=body, **options)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401), ("", 401), ("Bearer", 401), ("Bearer wrong", 401), ("Basic secret", 401), ("secret", 401),
        ("Bearer secre", 401), ("Bearer secrets", 401), ("Bearer sécret", 401), ("Bearer secret", 200), ("bearer secret", 200),
    ],
)  # fmt: skip
def test_a_key_is_wanted_of_everyone(given, status):
    headers = {} if given is None else {"Authorization": given.encode()}
    response = ask(toy_app(api_key="secret"), headers)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert "secret" not in response.text


def test_every_path_but_the_page_and_health_wants_it():
    app = toy_app(api_key="secret")
    for path in ("/v1/models", "/metrics", "/v1/status", "/version", "/openapi.json", "/nothing"):
        assert ask(app, body=None, path=path).status_code == 401, path
    for path in ("/", "/health"):
        assert ask(app, body=None, path=path).status_code == 200, path


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200), ("localhost:8000", 200), ("LOCALHOST", 200), ("[::1]:8000", 200), ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403), ("", 403), ("[", 403), ("proxy.example", 403),
    ],
)  # fmt: skip
def test_names_of_other_machines_are_refused_on_the_loopback(host, status):
    assert ask(toy_app(), {"Host": host}).status_code == status


def test_names_that_are_allowed():
    app = toy_app(allowed_hosts=("proxy.example",))
    assert ask(app, {"Host": "proxy.example"}).status_code == 200
    assert ask(app, {"Host": "other.example"}).status_code == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (BASE, 200),
        ("http://127.0.0.1:9000", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://[", 403),
    ],
)
def test_pages_of_other_origins_are_refused(origin, status):
    assert ask(toy_app(), {"Origin": origin}).status_code == status


def test_a_page_that_is_allowed_may_ask_and_no_other():
    app = toy_app(allowed_origins=("https://chat.example",))

    async def run():
        async with client_of(app) as client:
            asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
            return await client.options("/v1/chat/completions", headers=asked)

    preflight = asyncio.run(run())
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://chat.example"
    answer = ask(app, {"Origin": "https://chat.example"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    assert "access-control-allow-origin" not in ask(toy_app()).headers


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", ""]
)
def test_only_json_is_read(kind):
    async def run():
        async with client_of(toy_app()) as client:
            return await client.post(
                "/v1/chat/completions", content=b'{"messages": []}', headers={"Content-Type": kind}
            )

    response = asyncio.run(run())
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_body_over_the_limit_is_refused_stated_or_not(is_stated):
    async def parts():
        for _ in range(8):
            yield b" " * 1024

    async def run():
        async with client_of(toy_app(max_body_bytes=4096)) as client:
            content = b" " * 8192 if is_stated else parts()
            return await client.post(
                "/v1/chat/completions", content=content, headers={"Content-Type": "application/json"}
            )

    response = asyncio.run(run())
    assert response.status_code == 413
    assert "4096" in response.json()["error"]["message"]


def test_a_body_that_does_not_come_is_given_up():
    async def never():
        yield b"{"
        await asyncio.sleep(60)

    async def run():
        async with client_of(toy_app(body_timeout_s=0.05)) as client:
            return await client.post(
                "/v1/chat/completions", content=never(), headers={"Content-Type": "application/json"}
            )

    assert asyncio.run(run()).status_code == 408


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"a"',
        b'{"messages": NaN}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": "\\ud800"}',
        b'{"a":' * 5000,
    ],
    ids=range(10),
)
def test_what_is_no_json_object_is_refused(content):
    async def run():
        async with client_of(toy_app()) as client:
            return await client.post(
                "/v1/chat/completions", content=content, headers={"Content-Type": "application/json"}
            )

    response = asyncio.run(run())
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_an_open_address_needs_a_key_or_a_word():
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 can be reached.*--api-key-file"):
        ServerSettings(model_name="toy", host="0.0.0.0")
    ServerSettings(model_name="toy", host="0.0.0.0", api_key="secret")
    ServerSettings(model_name="toy", host="0.0.0.0", allow_unauthenticated=True)
    for host in ("127.0.0.1", "localhost", "::1", "127.8.0.1"):
        ServerSettings(model_name="toy", host=host)


def test_neither_prompts_nor_keys_are_logged(caplog):
    caplog.set_level("DEBUG", "foreword")
    app = toy_app(api_key="topsecretkey")
    body = {
        "messages": [{"role": "user", "content": "privatewords"}],
        "max_tokens": 2,
        "user": "x",
        "odd": "privatewords",
    }
    assert ask(app, {"Authorization": "Bearer topsecretkey"}, body).status_code == 200
    assert ask(app, {"Authorization": "Bearer topsecretkex"}, body).status_code == 401
    assert "topsecret" not in caplog.text
    assert "privatewords" not in caplog.text
