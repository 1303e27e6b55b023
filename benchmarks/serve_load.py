"""The server under load, over HTTP, with a real client.

    python -m benchmarks.serve_load ROW --prompts FILE.jsonl [--num-prompts 24] [--max-tokens 64] [--json OUT]

    one-client   tokens per second of one streaming client against `LLM.generate` in this process
    drafted      total tokens per second of 1, 4, 8 and 16 clients: the drafter `auto` against `none`
    prefix       time to the first token of a second request that begins with the same 1,000 tokens, and of a third one
                 to a server that was started anew and has them from --prompt-cache
    drops        --count requests, a fifth of them left by the client at random moments: memory, and every word
    alone        the same requests alone, beside 15 others, and from `LLM.generate`: the same tokens
    load         total tokens per second of --clients clients; with --against URL of any server of the OpenAI API

Arms that are compared take turns, prompt by prompt or round by round. Nothing else should run. FILE has a line per prompt, as
`foreword generate --prompts` reads it; prompts are taken over all its categories.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serve_client import Client, Server, Streamed, ask, client_of, load, serving
from foreword.bench.workloads import stratified
from foreword.cli.prompt_file import read_prompts
from tests.support.tiny_chat import write_tiny_chat

CLIENTS = (1, 4, 8, 16)
MIB = 1 << 20
LEFT = ("num_running", "num_waiting")  # of the status: requests that have not ended


def questions(args: argparse.Namespace) -> list[str]:
    """First turns, the same number of every category."""
    lines = [line for line in read_prompts(args.prompts) if line.turns]
    chosen = stratified([line.id for line in lines], [line.category or "" for line in lines], args.num_prompts)
    return [lines[place].turns[0] for place in chosen]


def chat(question: str, args: argparse.Namespace, **options: Any) -> dict[str, Any]:
    """The body of a request."""
    named = {"model": args.model_name} if args.model_name else {}
    return {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": args.max_tokens,
        "temperature": 0,
        **named,
        **options,
    }


def per_second(answers: Sequence[Streamed], seconds: float) -> float:
    failed = [answer.status for answer in answers if answer.status != 200]
    assert not failed, f"the server refused: {failed[:5]}"
    return sum(answer.completion_tokens for answer in answers) / seconds


async def one_client(args: argparse.Namespace) -> dict[str, Any]:
    from foreword import LLM, SamplingParams

    asked, params = questions(args), SamplingParams(max_tokens=args.max_tokens)
    pairs: list[tuple[float, float]] = []
    llm = LLM(None, "auto", prefix_cache=False, batch_size=16)
    with serving("--no-prefix-cache", *args.serve) as server, llm:

        async def over_http(question: str) -> tuple[str, float]:
            answer = await ask(client, chat(question, args))
            return answer.text, answer.completion_tokens / answer.total_s

        async def in_python(question: str) -> tuple[str, float]:
            start_s = time.perf_counter()
            (result,) = await asyncio.to_thread(llm.generate, [{"role": "user", "content": question}], params)
            return result.text, len(result.token_ids) / (time.perf_counter() - start_s)

        async with client_of(server) as client:
            for place, question in enumerate([asked[0], *asked, *asked]):
                order = (over_http, in_python) if place % 2 else (in_python, over_http)
                told = {arm: await arm(question) for arm in order}
                (text, http), (other, python) = told[over_http], told[in_python]
                assert text == other, "HTTP and Python say different things"
                pairs += [(http, python)] if place else []  # the first one warms both up
    http, python = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return {"http_tok_per_s": http, "python_tok_per_s": python, "ratio": ratio, "pairs": len(pairs)}


async def drafted(args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with serving("--drafter", "auto", *args.serve) as auto, serving("--drafter", "none", *args.serve) as none:
        async with client_of(auto) as drafts, client_of(none) as plain:
            for num_clients in args.clients or CLIENTS:
                found[str(num_clients)] = await compared(drafts, plain, num_clients, args)
                print(f"{num_clients:3} clients: {found[str(num_clients)]}", flush=True)
    return found


async def compared(drafts: Client, plain: Client, num_clients: int, args: argparse.Namespace) -> dict[str, Any]:
    """Turn about: twice as many requests as clients to one, the same to the other. The first turn warms up."""
    asked, size = questions(args), max(4, 2 * num_clients)
    texts = [f"{question}{' ' * turn}" for turn in range(args.rounds) for question in asked]  # none comes twice
    groups = [texts[:size], *(texts[start : start + size] for start in range(0, len(texts), size))]
    rates: list[tuple[float, float]] = []
    for place, group in enumerate(groups):
        bodies, order = [chat(text, args) for text in group], (drafts, plain) if place % 2 else (plain, drafts)
        told = {client: await load(client, bodies, num_clients) for client in order}
        answers = {client: [answer.text for answer in answers] for client, (answers, _) in told.items()}
        assert answers[drafts] == answers[plain], "drafting changed a word"
        rates += [(per_second(*told[drafts]), per_second(*told[plain]))] if place else []
    auto, none = (statistics.median(values) for values in zip(*rates, strict=True))
    ratios = sorted(a / b for a, b in rates)
    return {"auto": auto, "none": none, "ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}


async def prefix(args: argparse.Namespace) -> dict[str, Any]:
    words = [word for question in questions(args) for word in question.split()]
    rng = random.Random(0)  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        options = ("--prompt-cache", folder, *args.serve)
        with serving(*options) as server:
            async with client_of(server) as client:
                texts = [" ".join(rng.choices(words, k=1400)) for _ in range(args.rounds)]
                found = [await client.post(f"{server.root}/tokenize", json={"prompt": text}) for text in texts]
                prompts = [one.json()["tokens"][:1000] for one in found]
                first = await _first_s(client, prompts, 260)
                second = await _first_s(client, prompts, 300)
        num_bytes = _leave_memory(Path(folder))
        with serving(*options) as server:
            async with client_of(server) as client:
                restarted = await _first_s(client, prompts, 340)
                status = (await client.get(f"{server.root}/v1/status")).json()
    return {
        "first_s": statistics.median(first),
        "second_s": statistics.median(second),
        "after_restart_s": statistics.median(restarted),
        "ratio": statistics.median(b / a for a, b in zip(first, second, strict=True)),
        "ratio_after_restart": statistics.median(b / a for a, b in zip(first, restarted, strict=True)),
        "tokens_from_disk": status["engine"]["stored_tokens"],
        "mib_on_disk": round(num_bytes / MIB, 1),
        "pairs": len(first),
    }


async def _first_s(client: Client, prompts: Sequence[Sequence[int]], last: int) -> list[float]:
    """Times to the first token of prompts that go on with a token of this turn; a first request warms up."""
    await ask(client, {"prompt": [last], "max_tokens": 4})
    return [(await ask(client, {"prompt": [*ids, last], "max_tokens": 4})).first_s for ids in prompts]


def _leave_memory(folder: Path) -> int:
    """Have the system forget a folder's files, so that they are read from the disk; their bytes."""
    num_bytes = 0
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            num_bytes += path.stat().st_size
    return num_bytes


async def drops(args: argparse.Namespace) -> dict[str, Any]:
    rng, asked = random.Random(1), [question[: args.most_letters] for question in questions(args)]  # noqa: S311
    bodies = [chat(q, args, seed=s, temperature=t) for q in asked for s, t in ((1, 0), (2, 0.8), (3, 1.0))]
    memory, counts = [], {"right": 0, "wrong": 0, "dropped": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder, serving(*_model(args, Path(folder)), *args.serve) as server:
        async with client_of(server) as client:
            expected = [(await ask(client, body)).text for body in bodies]
            longest_s = max([(await ask(client, body)).total_s for body in bodies[:8]]) * 4

            async def one(number: int) -> None:
                place = rng.randrange(len(bodies))
                leaves = rng.random() < 0.2
                got = await ask(client, bodies[place], rng.random() * longest_s if leaves else None)
                kind = "dropped" if got.was_dropped else "refused" if got.status == 429 else "right"
                if kind == "right" and got.text != expected[place]:
                    kind = "wrong"
                if kind == "dropped" and not expected[place].startswith(got.text):
                    kind = "wrong"
                counts[kind] += 1
                if number % 500 == 0:
                    memory.append(round(server.rss_bytes / MIB, 1))
                    print(f"{number}: {counts}, {memory[-1]} MiB", flush=True)

            left = iter(range(args.count))

            async def worker() -> None:
                for number in left:
                    await one(number)

            await asyncio.gather(*(worker() for _ in range(16)))
            stuck = (await client.get(f"{server.root}/v1/status")).json()
            memory.append(round(server.rss_bytes / MIB, 1))
    return {
        **counts,
        "memory_mib": memory,
        "left": {name: stuck["engine"][name] for name in LEFT},
    }


def _model(args: argparse.Namespace, folder: Path) -> tuple[str, ...]:
    """Options for a tiny random model, where that is asked for: a thousand requests in a minute."""
    return ("--model", str(write_tiny_chat(folder))) if args.tiny else ()


async def alone(args: argparse.Namespace) -> dict[str, Any]:
    from foreword import LLM, SamplingParams

    bodies = [
        chat(question, args, seed=5, temperature=temperature, return_token_ids=True)
        for question, temperature in zip(questions(args), [0, 0.7, 1.0] * args.num_prompts, strict=False)
    ]
    with serving(*args.serve) as server:
        async with client_of(server) as client:
            by_itself = [(await ask(client, body)).token_ids for body in bodies]
            beside, _ = await load(client, bodies, 16)
    with LLM(None, "none", prefix_cache=False) as llm:
        params = [
            SamplingParams(max_tokens=args.max_tokens, seed=5, temperature=body["temperature"]) for body in bodies
        ]
        python = [result.token_ids for result in llm.generate([body["messages"] for body in bodies], params)]
    differ = sum(not (a == b.token_ids == c) for a, b, c in zip(by_itself, beside, python, strict=True))
    return {"requests": len(bodies), "differ": differ}


async def loaded(args: argparse.Namespace) -> dict[str, Any]:
    asked, found = questions(args), {}

    async def measure(server: Server) -> None:
        async with client_of(server) as client:
            await load(client, [chat(question, args) for question in asked[:4]], 4)
            for num_clients in args.clients or (8,):
                bodies = [chat(f"{question}{' ' * num_clients}", args) for question in asked]
                answers, seconds = await load(client, bodies, num_clients)
                first = statistics.median(answer.first_s for answer in answers)
                found[str(num_clients)] = {"tok_per_s": per_second(answers, seconds), "first_s": first}

    if args.against:
        await measure(Server(args.against))
    else:
        with serving(*args.serve) as server:
            await measure(server)
    return found


ROWS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "one-client": one_client, "drafted": drafted, "prefix": prefix, "drops": drops, "alone": alone, "load": loaded,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--tiny", action="store_true", help="drops: of a tiny random model")
    parser.add_argument("--most-letters", type=int, default=None, help="drops: cut prompts there")
    parser.add_argument("--clients", type=int, nargs="*", default=None)
    parser.add_argument("--against", default=None, metavar="URL", help="another server, with /v1")
    parser.add_argument("--model-name", default=None, help="what that server calls its model")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="last: options of foreword serve")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    found = {"row": args.row, **asyncio.run(ROWS[args.row](args))}
    print(json.dumps(found, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    faults = (found.get("wrong"), found.get("differ"), *found.get("left", {}).values())
    return 1 if any(faults) else 0


if __name__ == "__main__":
    raise SystemExit(main())
