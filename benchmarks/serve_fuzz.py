"""Thousands of requests that are wrong in all ways, while a client that does nothing wrong goes on.

    python -m benchmarks.serve_fuzz [--count 5000] [--first 0] [--at-once 16]

Starts a server of a tiny random model in this process. Every number is a case of its own, so that `--first N --count 1` repeats one.
Then half-open and slow connections, and 256 connections at once. Prints every answer that is neither right nor a 4xx, every error of
the server's log, and every answer of the steady client that is not as it was; exits with 1 if there is any.
"""

import argparse
import asyncio
import collections
import json
import logging
import random
import tempfile
import time
from pathlib import Path

from tests.support.serve_fuzz import VALID, Case, case, fault, request, send
from tests.support.tool_serving import tool_server

BODY = VALID[0][1] | {"max_tokens": 8, "seed": 1, "temperature": 1}
STEADY = request("/v1/chat/completions", json.dumps(BODY).encode())
TEMPLATES = ("hermes", "llama3", "mistral", "mistral-named", "plain")


class Faults(logging.Handler):
    """Collects what went wrong, the server's own errors among it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"log: {self.format(record)}")


async def content(port: int) -> str | None:
    """What the steady client reads; None where it was told to come back."""
    answer = await send(port, STEADY)
    return None if answer.status == 429 else json.loads(answer.body)["choices"][0]["message"]["content"]


async def steadily(port: int, expected: str, faults: Faults, stop: asyncio.Event) -> int:
    count = 0
    while not stop.is_set():
        if (text := await content(port)) != expected:
            faults.found.append(f"the steady client read {text!r} instead of {expected!r}")
        count += 1
    return count


async def mutations(port: int, numbers: range, at_once: int, faults: Faults) -> collections.Counter[int]:
    statuses: collections.Counter[int] = collections.Counter()
    left = iter(numbers)

    async def worker() -> None:
        for number in left:
            sent: Case = case(random.Random(number))  # noqa: S311
            try:
                answer = await send(port, sent.raw)
            except TimeoutError:
                faults.found.append(f"{number}: {sent.what}\n  no answer")
                continue
            statuses[answer.status] += 1
            if found := fault(sent, answer):
                faults.found.append(f"{number}: {sent.what}\n  {found}")

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return statuses


async def hanging(port: int, num: int) -> None:
    """Connections that stop in the middle of a request, or send a byte now and then."""
    made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(num)]
    for place, (_, writer) in enumerate(made):
        writer.write(STEADY[: place * 7 % (len(STEADY) - 1)])
    for _ in range(20):
        await asyncio.sleep(0.1)
        for _, writer in made[: num // 2]:
            if not writer.is_closing():
                writer.write(b"x")
    for _, writer in made:
        writer.close()


async def at_once(port: int, num: int, expected: str, faults: Faults) -> int:
    texts = await asyncio.gather(*(content(port) for _ in range(num)))
    faults.found += [f"one of {num} read {text!r}" for text in texts if text not in (None, expected)]
    return sum(text is not None for text in texts)


async def attack(port: int, args: argparse.Namespace, faults: Faults) -> None:
    expected, stop = await content(port), asyncio.Event()
    assert expected is not None
    steady = asyncio.create_task(steadily(port, expected, faults, stop))
    start_s = time.perf_counter()
    statuses = await mutations(port, range(args.first, args.first + args.count), args.at_once, faults)
    print(f"{args.count} mutations in {time.perf_counter() - start_s:.0f} s; statuses {dict(sorted(statuses.items()))}")
    if args.count > 1:
        await hanging(port, 200)
    stop.set()
    print(f"the steady client asked {await steady} times meanwhile")
    if args.count > 1:
        print(
            f"256 connections at once: {await at_once(port, 256, expected, faults)} answered, the others told to come back"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--template", choices=TEMPLATES, default="hermes", help="how the model's template calls tools")
    args = parser.parse_args()
    faults = Faults()
    logging.getLogger().addHandler(faults)
    options = {"context_len": 512, "body_timeout_s": 1.0, "max_body_bytes": 500_000}
    with (
        tempfile.TemporaryDirectory() as folder,
        tool_server(Path(folder), args.template, **options) as server,
    ):
        asyncio.run(attack(int(server.url.split(":")[2].split("/")[0]), args, faults))
    for found in faults.found[:50]:
        print(found)
    print(f"{len(faults.found)} faults")
    return 1 if faults.found else 0


if __name__ == "__main__":
    raise SystemExit(main())
