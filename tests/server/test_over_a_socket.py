"""What only a real connection shows: clients that go away, read slowly or come in numbers, and a server that ends."""

import asyncio
import json
import socket
import threading
import time

import httpx2
import pytest

from foreword.sampling.params import SamplingParams
from foreword.server.run import config_of, listener_of
from foreword.server.settings import ServerSettings
from tests.support.gate import GatedDecoder
from tests.support.serving import HELLO, chat_tokenizer, listening, sse_data, toy_app

VOCAB = chat_tokenizer().vocab_size
LONG = {"messages": HELLO, "max_tokens": 1000, "ignore_eos": True}
SHORT = {"messages": HELLO, "max_tokens": 12, "return_token_ids": True}
CHAT = "/v1/chat/completions"


def until(condition, what: str) -> None:
    """Wait for what another thread does; not for long."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"waited for: {what}"
        time.sleep(0.002)


def running(app) -> int:
    seen = app.state.served.llm.snapshot()
    return seen.num_running + seen.num_waiting


def connected(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def raw(body: dict) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_goes_away_ends_its_request_in_the_next_step(streamed):
    decoder = GatedDecoder(vocab_size=VOCAB)
    app = toy_app(decoder)
    with listening(app) as address:
        client = connected(address)
        decoder.close_gate()
        client.sendall(raw(LONG | {"stream": streamed}))
        decoder.wait_for_pass()
        client.close()
        time.sleep(0.1)  # the server hears of it, in the middle of a pass
        before = app.state.served.llm.snapshot().num_steps
        decoder.open_gate()
        until(lambda: running(app) == 0, "the request of a client that is gone")
        seen = app.state.served.llm.snapshot()
        assert seen.num_steps - before <= 3
        assert seen.finished.get("abort") == 1


def test_a_client_that_waits_for_a_place_goes_away_too():
    decoder = GatedDecoder(vocab_size=VOCAB)
    app = toy_app(decoder, batch_size=1)
    with listening(app) as address:
        decoder.close_gate()
        first, second = connected(address), connected(address)
        first.sendall(raw(LONG | {"stream": True}))
        decoder.wait_for_pass()
        second.sendall(raw(LONG))
        until(
            lambda: len(app.state.served.llm._loop._queued) + app.state.served.llm.snapshot().num_waiting >= 1,
            "the second",
        )
        second.close()
        time.sleep(0.1)
        decoder.open_gate()
        first.close()
        until(lambda: running(app) == 0, "both to be gone")


def test_a_slow_reader_holds_no_one_up_and_loses_nothing():
    app = toy_app()
    with listening(app) as address, httpx2.Client(base_url=address, timeout=60) as client:
        body = LONG | {"return_token_ids": True}
        whole = client.post(CHAT, json=body).json()["choices"][0]
        slow = connected(address)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.sendall(raw(body | {"stream": True}))
        assert client.post(CHAT, json=SHORT).status_code == 200  # others are answered meanwhile
        until(lambda: running(app) == 0, "the engine to be done with what nobody has read")
        parts = []
        while b"data: [DONE]" not in b"".join(parts[-2:]):
            parts.append(slow.recv(65536))
            assert parts[-1], "the connection ended"
        slow.close()
    text = b"".join(parts).partition(b"\r\n\r\n")[2].decode()
    lines = [line for line in text.split("\n") if line.startswith("data: {")]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == whole["token_ids"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == whole["message"]["content"]


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
def test_events_come_once_a_step_or_with_pauses_and_the_text_is_the_same(pause_s):
    decoder = GatedDecoder(vocab_size=VOCAB)
    app = toy_app(decoder, drafter="none", stream_pause_s=pause_s)
    with listening(app) as address, httpx2.Client(base_url=address, timeout=60) as client:
        whole = client.post(CHAT, json=SHORT).json()["choices"][0]
        decoder.on_pass = lambda: time.sleep(0.02)
        chunks = sse_data(client.post(CHAT, json=SHORT | {"stream": True}).text)
    parts = [choice["token_ids"] for chunk in chunks for choice in chunk["choices"] if "token_ids" in choice]
    assert [token for part in parts for token in part] == whole["token_ids"]
    assert (len(parts) > 8) == (pause_s == 0), parts


@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_small_answers_are_sent_at_once(loop):
    """With Nagle's algorithm each answer on a kept connection took 40 ms more: the time of a delayed acknowledgement."""

    async def run():
        is_off = asyncio.Queue()
        server = await asyncio.get_running_loop().create_server(lambda: Told(is_off), sock=listener)
        async with server:
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await is_off.get() != 0
            writer.close()

    class Told(asyncio.Protocol):
        def __init__(self, is_off):
            self.is_off = is_off

        def connection_made(self, transport):
            connection = transport.get_extra_info("socket")
            self.is_off.put_nowait(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    listener = listener_of(ServerSettings(port=0, model_name="toy"))
    factory = None if loop == "asyncio" else config_of(toy_app()).get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


def test_a_full_queue_says_when_to_come_back():
    decoder = GatedDecoder(vocab_size=VOCAB)
    app = toy_app(decoder, batch_size=1, max_queue=1)
    with listening(app) as address, httpx2.Client(base_url=address, timeout=60) as client:
        decoder.close_gate()
        waiting = [connected(address) for _ in range(2)]
        waiting[0].sendall(raw(LONG))
        decoder.wait_for_pass()
        waiting[1].sendall(raw(LONG))
        until(lambda: len(app.state.served.llm._loop._queued) == 1, "one call in the queue")
        for streamed in (False, True):
            refused = client.post(CHAT, json=SHORT | {"stream": streamed})
            assert refused.status_code == 429, refused.text
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
        for one in waiting:
            one.close()
        decoder.open_gate()
        until(lambda: running(app) == 0, "the queue to be empty")
        assert client.post(CHAT, json=SHORT).status_code == 200


def test_alone_and_beside_fifteen_others_the_same_tokens():
    app = toy_app(batch_size=16)
    bodies = [
        SHORT
        | {
            "messages": [{"role": "user", "content": f"hello {n}"}],
            "temperature": n % 3 / 2,
            "seed": n,
            "stream": n % 2 == 0,
        }
        for n in range(16)
    ]

    def ids(response) -> list[int]:
        if response.headers["content-type"].startswith("text/event-stream"):
            choices = [choice for chunk in sse_data(response.text) for choice in chunk["choices"]]
            return [token for choice in choices for token in choice.get("token_ids", [])]
        return response.json()["choices"][0]["token_ids"]

    async def all_at_once(address):
        async with httpx2.AsyncClient(base_url=address, timeout=60) as client:
            return await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))

    with listening(app) as address:
        together = [ids(response) for response in asyncio.run(all_at_once(address))]
        with httpx2.Client(base_url=address, timeout=60) as client:
            alone = [ids(client.post(CHAT, json=body)) for body in bodies]
        served = app.state.served
        prompts = [served.tokenizer.apply_chat_template(body["messages"]) for body in bodies]
        params = [SamplingParams(max_tokens=12, temperature=body["temperature"], seed=body["seed"]) for body in bodies]
        python = [r.token_ids for r in asyncio.run(served.llm.generate(prompts, params))]
    assert together == alone == python


def test_a_request_that_fails_ends_alone():
    """The gate's hook raises in the middle of one pass: those in it end with 500, the next ones are answered."""
    decoder = GatedDecoder(vocab_size=VOCAB)
    app = toy_app(decoder)
    with listening(app) as address, httpx2.Client(base_url=address, timeout=60) as client:
        expected = client.post(CHAT, json=SHORT).json()["choices"]

        def fail():
            raise RuntimeError("a pass that fails")

        decoder.on_pass = fail
        failed = client.post(CHAT, json=SHORT)
        assert failed.status_code == 500
        assert failed.json()["error"]["type"] == "server_error"
        decoder.on_pass = lambda: None
        assert client.post(CHAT, json=SHORT).json()["choices"] == expected
        assert client.get("/health").status_code == 200


def test_a_late_answer_ends_with_what_there_is():
    decoder = GatedDecoder(vocab_size=VOCAB)
    app = toy_app(decoder, request_timeout_s=0.2)
    with listening(app) as address, httpx2.Client(base_url=address, timeout=60) as client:
        decoder.on_pass = lambda: time.sleep(0.02)
        answer = client.post(CHAT, json=LONG | {"return_token_ids": True}).json()
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "length"
        assert len(choice["token_ids"]) < 1000


def test_an_ending_server_lets_running_answers_finish():
    decoder = GatedDecoder(vocab_size=VOCAB)
    app = toy_app(decoder)
    found = []
    with listening(app) as address:
        decoder.close_gate()
        asked = threading.Thread(target=lambda: found.append(httpx2.post(address + CHAT, json=SHORT, timeout=60)))
        asked.start()
        decoder.wait_for_pass()
        threading.Timer(0.2, decoder.open_gate).start()  # while the server is on its way out
    asked.join(30)
    assert found[0].status_code == 200
    assert len(found[0].json()["choices"][0]["token_ids"]) == 12


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\nHost: local", b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /\r\n" * 9000]
)
def test_connections_that_say_nothing_or_nonsense_hold_no_one_up(said):
    app = toy_app()
    with listening(app) as address, httpx2.Client(base_url=address, timeout=60) as client:
        strange = [connected(address) for _ in range(20)]
        for one in strange:
            one.sendall(said)
        assert client.post(CHAT, json=SHORT).status_code == 200
        for one in strange:
            one.close()
        assert client.post(CHAT, json=SHORT).status_code == 200


def test_256_connections_at_once():
    app = toy_app(batch_size=16)

    async def run(address):
        limits = httpx2.Limits(max_connections=256)
        async with httpx2.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
            return await asyncio.gather(*(client.post(CHAT, json=SHORT | {"max_tokens": 4}) for _ in range(256)))

    with listening(app) as address:
        answers = asyncio.run(run(address))
    assert {response.status_code for response in answers} == {200}
    assert len({tuple(response.json()["choices"][0]["token_ids"]) for response in answers}) == 1
