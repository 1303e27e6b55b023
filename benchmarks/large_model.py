"""A model of gigabytes, plain and drafted for, beside llama.cpp's server on the same prompts.

    python -m benchmarks.large_model --model M.gguf --draft-model D.gguf --prompts FILE --out large.json \\
        [--llama-server PATH --llama-models Q4_K_M.gguf Q8_0.gguf]

One process of each side is up at a time for one prompt after the other: every prompt goes to every row in turn, so that the
machine's moods hit all alike. Tokens a second count decoding alone, from the first new token on. Greedy, no prefix cache.
"""

import argparse
import json
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foreword import LLM, SamplingParams
from foreword.target.load_model import LoadedModel, load_model

Row = Callable[[list[int]], tuple[float, list[int]]]  # a prompt's ids: tokens a second of decoding, the new ids
_PLAIN, _NGRAM, _DRAFT = "plain", "ngram", "draft model"


def foreword_rows(
    model: LoadedModel, draft_model: str | None, params: SamplingParams, engines: list[LLM]
) -> dict[str, Row]:
    """One row per drafter over one loaded model."""
    drafters: dict[str, Any] = {_PLAIN: "none", "suffix": "suffix"}
    if draft_model:
        drafters[_DRAFT] = {"method": "draft_model", "model": draft_model}
        drafters["suffix,draft model"] = f"suffix,draft_model={draft_model}"
    rows: dict[str, Row] = {}
    for name, drafter in drafters.items():
        llm = LLM(model, drafter, prefix_cache=False)
        engines.append(llm)

        def ask(ids: list[int], llm: LLM = llm) -> tuple[float, list[int]]:
            (result,) = llm.generate(ids, params)
            return result.stats.decode_tok_per_s or 0.0, result.token_ids

        rows[f"foreword {model.choice.dtype} {name}"] = ask
    return rows


class LlamaServer:
    """llama.cpp's server with one model, and one way of drafting or none."""

    def __init__(self, binary: str, model: str, extra: list[str], threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [binary, "-m", model, "--port", str(port), "-t", str(threads), "-c", "2048", "-np", "1", *extra]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self._url}/health", timeout=5)
                return
            except (urllib.error.URLError, ConnectionError):
                if self._process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended with {self._process.returncode}") from None
                time.sleep(0.2)
        raise SystemExit(f"{' '.join(command)} was not ready in two minutes")

    def ask(self, ids: list[int], num_tokens: int) -> tuple[float, list[int]]:
        """Tokens a second of decoding, and the new ids."""
        wanted = {
            "prompt": ids,
            "n_predict": num_tokens,
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
        }
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/completion", json.dumps(wanted).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            found = json.load(answer)
        return found["timings"]["predicted_per_second"], found["tokens"]

    def end(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait()


def llama_rows(args: argparse.Namespace, servers: list[LlamaServer]) -> dict[str, Row]:
    """Plain, its n-gram lookup and a draft model, for each of its files."""
    ways = {_PLAIN: [], _NGRAM: ["--spec-type", "ngram-simple"]}
    if args.draft_model:
        ways[_DRAFT] = ["-md", args.draft_model, "--spec-type", "draft-simple"]
    rows: dict[str, Row] = {}
    for model in args.llama_models if args.llama_server else []:
        for name, extra in ways.items():
            server = LlamaServer(args.llama_server, model, extra, args.threads)
            servers.append(server)
            rows[f"llama.cpp {Path(model).stem.rsplit('-', 1)[-1]} {name}"] = lambda ids, s=server: s.ask(
                ids, args.max_new
            )
    return rows


def read_prompts(args: argparse.Namespace, model: LoadedModel) -> list[list[int]]:
    """The first turns of the prompt file's evenly spaced lines, in the model's chat template."""
    lines = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    chosen = lines[:: max(1, len(lines) // args.num_prompts)][: args.num_prompts]
    render = model.tokenizer.apply_chat_template
    return [render([{"role": "user", "content": line["turns"][0]}]) for line in chosen]


def measure(rows: dict[str, Row], prompts: list[list[int]]) -> dict[str, Any]:
    """Medians, and which answers are those of the first row of the same engine and precision."""
    speeds: dict[str, list[float]] = {name: [] for name in rows}
    same: dict[str, int] = dict.fromkeys(rows, 0)
    for ids in prompts:
        plain: dict[str, list[int]] = {}
        for name, ask in rows.items():
            speed, tokens = ask(ids)
            engine = " ".join(name.split()[:2])
            speeds[name].append(speed)
            same[name] += plain.setdefault(engine, tokens) == tokens
            print(f"{name}: {speed:.1f}", flush=True)
    return {
        name: {"tok_per_s": round(statistics.median(found), 2), "same_as_plain": same[name], "prompts": len(prompts)}
        for name, found in speeds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=6)
    parser.add_argument("--max-new", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["int8", "int4"])
    parser.add_argument("--llama-server")
    parser.add_argument("--llama-models", nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    params = SamplingParams(max_tokens=args.max_new)
    engines: list[LLM] = []
    servers: list[LlamaServer] = []
    try:
        models = [load_model(args.model, runtime="native", dtype=dtype, threads=args.threads) for dtype in args.dtypes]
        rows: dict[str, Row] = {}
        for model in models:
            rows |= foreword_rows(model, args.draft_model, params, engines)
        rows |= llama_rows(args, servers)
        prompts = read_prompts(args, models[0])
        for ask in rows.values():
            ask(prompts[0])  # warm: pages, pass costs, caches
        args.out.write_text(json.dumps(measure(rows, prompts), indent=1))
    finally:
        for each in (*engines, *servers):
            each.close() if isinstance(each, LLM) else each.end()
    print(args.out.read_text())


if __name__ == "__main__":
    main()
