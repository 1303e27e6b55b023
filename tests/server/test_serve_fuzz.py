"""A few hundred requests that are wrong in all ways; `benchmarks/serve_fuzz.py` sends thousands."""

import asyncio
import json
import logging
import random

import pytest

from tests.support.serve_fuzz import VALID, case, fault, request, send
from tests.support.tool_serving import tool_server

NUM_CASES, NUM_AT_ONCE = 240, 8
STEADY = request(
    "/v1/chat/completions", json.dumps(VALID[0][1] | {"max_tokens": 8, "seed": 1, "temperature": 1}).encode()
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with tool_server(folder, context_len=512, body_timeout_s=0.5, max_body_bytes=200_000) as server:
        yield server


@pytest.fixture
def port(served):
    return int(served.url.split(":")[2].split("/")[0])


def content(answer):
    return json.loads(answer.body)["choices"][0]["message"]["content"]


async def steady(port, stop):
    """What a client that does nothing wrong gets meanwhile."""
    found = []
    while not stop.is_set():
        found.append(content(await send(port, STEADY)))
    return found


@pytest.mark.parametrize("seed", range(2))
def test_only_right_answers_and_refusals(port, seed, caplog):
    rng = random.Random(seed)
    cases = [case(rng) for _ in range(NUM_CASES // 2)]

    async def run():
        stop, gate = asyncio.Event(), asyncio.Semaphore(NUM_AT_ONCE)
        expected = content(await send(port, STEADY))

        async def one(sent):
            async with gate:
                return fault(sent, await send(port, sent.raw))

        other = asyncio.create_task(steady(port, stop))
        faults = await asyncio.gather(*(one(sent) for sent in cases))
        stop.set()
        return faults, set(await other) == {expected}

    with caplog.at_level(logging.ERROR):
        faults, is_steady = asyncio.run(run())
    wrong = [f"{sent.what}\n  {found}" for sent, found in zip(cases, faults, strict=True) if found]
    assert not wrong, "\n".join(wrong)
    assert is_steady
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


def test_half_open_and_slow_connections_disturb_no_one(port):
    async def run():
        hanging = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        for place, (_, writer) in enumerate(hanging):
            writer.write(STEADY[: place * 7 % len(STEADY)])
        before = [content(await send(port, STEADY)) for _ in range(3)]
        ends = [await asyncio.wait_for(reader.read(), 20) for reader, _ in hanging[20:30]]
        for _, writer in hanging:
            writer.close()
        return before, ends

    before, ends = asyncio.run(run())
    assert len(set(before)) == 1
    assert all(b" 408 " in end.partition(b"\r\n")[0] for end in ends if end)


def test_256_connections_at_once(port):
    async def run():
        return await asyncio.gather(*(send(port, STEADY) for _ in range(256)))

    answers = asyncio.run(run())
    assert {answer.status for answer in answers} <= {200, 429}
    assert len({content(answer) for answer in answers if answer.status == 200}) == 1
    assert all("retry-after" in answer.headers for answer in answers if answer.status == 429)
