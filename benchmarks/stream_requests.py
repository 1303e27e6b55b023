"""Requests of six kinds, as one user might send them all day, made of the development data.

    python -m benchmarks.stream_requests --data ../shared/data --out answers.jsonl --minutes 5

asks the model all of them and keeps prompt and answer as token ids, a line each; started again it goes on where it stopped.
Drafting changes no token, so what any drafter would have done can be replayed over these lines (`benchmarks.stream`).
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from foreword.engine.llm import LLM
from foreword.engine.prompts import Prompt
from foreword.sampling.params import SamplingParams

NUM_REQUESTS = 200  # of a kind
MAX_TOKENS = 96
_BATCH = 16
_EDITS = (
    "Add a comment above every line of this code",
    "Rename the variables of this code so that their names say what they hold",
    "Turn this code into a function with a docstring",
    "Print every result of this code",
    "Repeat this code with double quotes instead of single quotes",
)


def _turns(path: Path) -> list[str]:
    return [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").split("\n") if line]


def _problems(data: Path) -> list[str]:
    return _turns(data / "prompts" / "gsm8k_test.jsonl")


def _functions(data: Path) -> list[str]:
    """The descriptions alone, without their tests."""
    tasks = (turn.partition(" Your code should")[0] for turn in _turns(data / "train" / "mbpp_train.jsonl"))
    return [f"{task} Reply with a Python function and one line that says what it does." for task in tasks]


def _edits(data: Path) -> list[str]:
    """Blocks of code of the documentation, each with one of a few wishes."""
    text = (data / "text" / "python_docs.txt").read_text(encoding="utf-8")
    blocks = [
        re.sub(r"(?m)^ {3,4}", "", block).strip() for block in re.findall(r"::\n\n((?: {3,}.*\n|\n){4,14})", text)
    ]
    blocks = [block for block in blocks if 120 <= len(block) <= 600]
    step = len(blocks) // NUM_REQUESTS
    return [f"{_EDITS[i % len(_EDITS)]}:\n\n```python\n{block}\n```" for i, block in enumerate(blocks[::step])]


def _summaries(data: Path) -> list[str]:
    """Paragraphs of the documentation."""
    text = (data / "text" / "python_docs.txt").read_text(encoding="utf-8")
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    long = [part for part in paragraphs if 400 <= len(part) <= 900 and part[0].isupper()]
    return [
        f"Summarize this part of the documentation in two sentences:\n\n{part}"
        for part in long[:: len(long) // NUM_REQUESTS]
    ]


def _mails(data: Path) -> list[str]:
    asked = [turn for turn in _turns(data / "train" / "open_assistant.jsonl") if len(turn) <= 200]
    return [f"A customer asks: {turn}\nWrite a short, polite e-mail that answers." for turn in asked]


def _extractions(data: Path) -> list[str]:
    problems = _turns(data / "train" / "gsm8k_train.jsonl")
    task = 'Extract from this text, as JSON with the keys "people" (names), "numbers" (a list), "things" (a list) and "question":'
    return [f"{task}\n\n{problem}" for problem in problems[:: len(problems) // NUM_REQUESTS]]


KINDS: dict[str, Callable[[Path], list[str]]] = {
    "problems": _problems,
    "functions": _functions,
    "edits": _edits,
    "summaries": _summaries,
    "e-mails": _mails,
    "JSON": _extractions,
}


def requests(data: Path, kind: str) -> list[str]:
    """The user's messages of a kind, `NUM_REQUESTS` of them."""
    found = KINDS[kind](data)[:NUM_REQUESTS]
    assert len(found) == NUM_REQUESTS, f"{kind}: {len(found)} requests in {data}"
    return found


def record(data: Path, out: Path, seconds: float, temperature: float) -> bool:
    """Ask what has not been asked yet until the time is up; whether all has been."""
    end_s = time.monotonic() + seconds
    done = {(row["kind"], row["index"]) for row in read_answers(out)} if out.exists() else set()
    wanted = [(kind, i, text) for kind in KINDS for i, text in enumerate(requests(data, kind)) if (kind, i) not in done]
    llm = LLM(drafter="none", batch_size=_BATCH)
    with out.open("a", encoding="utf-8") as file:
        for first in range(0, len(wanted), _BATCH):
            if time.monotonic() > end_s:
                return False
            part = wanted[first : first + _BATCH]
            prompts: list[Prompt] = [[{"role": "user", "content": text}] for _, _, text in part]
            params = [
                SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=index) for _, index, _ in part
            ]
            for (kind, index, _), result in zip(part, llm.generate(prompts, params), strict=True):
                row = {"kind": kind, "index": index, "prompt": result.prompt_token_ids, "answer": result.token_ids}
                file.write(json.dumps(row) + "\n")
            file.flush()
    return True


def read_answers(path: Path) -> list[dict]:
    """The recorded lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 once all requests have been answered, else 3."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args(arguments)
    return 0 if record(options.data, options.out, options.minutes * 60, options.temperature) else 3


if __name__ == "__main__":
    raise SystemExit(main())
