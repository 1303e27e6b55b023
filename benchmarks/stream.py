"""What a memory of earlier answers brings over a stream of requests, replayed over recorded answers.

    python -m benchmarks.stream_requests --data ../shared/data --out answers.jsonl     once: the model answers, minutes
    python -m benchmarks.stream answers.jsonl --out stream.json                        seconds a kind

With `match` a drafter changes no token, so the answers of plain decoding are those of every drafter, and what each would have
had accepted can be counted without the model: drafts of a fixed size are followed as long as they equal the answer. Tokens a
step therefore do not depend on the machine. Three drafters:

    forgetful    `auto` with memory false: suffix, then ngram_lm
    weighed      `memory` that learns what sources are worth and remembers no answer: what the mixer alone brings
    memory       `memory` as it is

For each kind of request: tokens a step of the first and the last fifty of 200, and how soon a stream is back at its level after fifty
requests of another kind, beside the same requests in a stream that was not interrupted.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.stream_requests import KINDS, MAX_TOKENS, read_answers
from foreword.adapt.acceptance import judged_edges
from foreword.draft.base import Drafter, Plan
from foreword.draft.draft_config import draft_config
from foreword.draft.make_drafter import make_drafter
from foreword.draft.memory.drafter import MemoryDrafter
from foreword.engine.llm import load_model
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

PART = 50  # requests
_WINDOW = 5  # requests over which a level is compared
_BACK = 0.97  # of the uninterrupted stream's tokens a step: back at its level
_BINS = 10
_CURVE = (0, 2, 5, 10, 20, 50, 100, 200)  # requests: where the parts of the learning curve begin and end

Pair = tuple[list[int], list[int]]  # prompt, answer


@dataclass
class Replayed:
    """A request whose answer is known: what a drafter may read of it."""

    request_id: int
    token_ids: list[int]
    prompt_len: int
    kv_len: int = 0
    slot: int = 0
    sampler: Any = None
    reference_ids: Sequence[int] = ()
    is_remembered: bool = True


@dataclass
class Count:
    """Of one request, or of several."""

    steps: int = 0
    tokens: int = 0
    nodes: int = 0
    edges: list[tuple[float, bool]] = field(default_factory=list)

    def __add__(self, other: "Count") -> "Count":
        return Count(
            self.steps + other.steps, self.tokens + other.tokens, self.nodes + other.nodes, self.edges + other.edges
        )

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps


class Stream:
    """Requests one after the other through one drafter.

    Args:
        drafter: as an engine has it.
        num_nodes: most drafted tokens a step.
    """

    def __init__(self, drafter: Drafter, num_nodes: int) -> None:
        self.drafter, self.num_nodes = drafter, num_nodes
        self.drafter_s, self.num_steps, self._next_id = 0.0, 0, 0

    def run(self, pair: Pair) -> Count:
        """One request: its first token is the prompt's pass, all others come in steps."""
        prompt, answer = pair
        self._next_id += 1
        request, count = Replayed(self._next_id, list(prompt), len(prompt)), Count()
        begun_s = time.perf_counter()
        self.drafter.start(request)
        request.token_ids.append(answer[0])
        place = 1
        while place < len(answer):
            request.kv_len = len(request.token_ids) - 1
            depth = min(self.num_nodes, MAX_TOKENS - place - 1)
            (tree,) = self.drafter.propose([request], [Plan(1, max(depth and self.num_nodes, 0), max(depth, 0))])
            path = followed(tree, answer[place:])
            emitted = answer[place : place + len(path)]
            request.token_ids += emitted
            place += len(emitted)
            count += Count(1, len(emitted), tree.num_drafted, judged_edges(tree, path))
        self.drafter.stop(request)
        self.drafter_s += time.perf_counter() - begun_s
        self.num_steps += count.steps
        return count


def followed(tree: DraftTree, answer: Sequence[int]) -> list[int]:
    """The nodes that the answer goes through, the root first."""
    path = [tree.num_known - 1]
    for token in answer:
        node = tree.children[path[-1]].get(token)
        if node is None:
            break
        path.append(node)
    return path


def total(counts: Sequence[Count]) -> Count:
    """Of several requests."""
    return sum(counts, Count())


def reliability(edges: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Stated chances against what became of them, in bins of the stated chance, and the mean distance between the two."""
    bins = [[edge for edge in edges if min(int(edge[0] * _BINS), _BINS - 1) == b] for b in range(_BINS)]
    rows = [
        {"tried": len(own), "stated": sum(s for s, _ in own) / len(own), "accepted": sum(a for _, a in own) / len(own)}
        for own in bins
        if own
    ]
    error = sum(row["tried"] * abs(row["stated"] - row["accepted"]) for row in rows) / max(len(edges), 1)
    return {"bins": rows, "error": error}


def back_after(interrupted: Sequence[Count], steady: Sequence[Count]) -> int:
    """Requests after a switch until a window of them is at the level of the stream without one."""
    for first in range(len(steady) - _WINDOW + 1):
        window = slice(first, first + _WINDOW)
        if total(interrupted[window]).tokens_per_step >= _BACK * total(steady[window]).tokens_per_step:
            return first
    return len(steady)


def measure(make: Callable[[], Drafter], by_kind: dict[str, list[Pair]], num_nodes: int) -> dict[str, Any]:
    """All kinds through one kind of drafter, a fresh one for each stream."""
    kinds, found, edges = list(by_kind), {}, []
    drafter_s, num_steps = 0.0, 0
    for number, kind in enumerate(kinds):
        stream, pairs = Stream(make(), num_nodes), by_kind[kind]
        counts = [stream.run(pair) for pair in pairs]
        first, last = total(counts[:PART]), total(counts[-PART:])
        other = by_kind[kinds[(number + 1) % len(kinds)]]
        begun = len(pairs) // 2
        switched = Stream(make(), num_nodes)
        _ = [switched.run(pair) for pair in [*pairs[:begun], *other[:PART]]]
        after = [switched.run(pair) for pair in pairs[begun : begun + PART]]
        all_of_it = total(counts)
        found[kind] = {
            "first": first.tokens_per_step,
            "last": last.tokens_per_step,
            "ratio": last.tokens_per_step / first.tokens_per_step,
            "all": all_of_it.tokens_per_step,
            "nodes": all_of_it.nodes / all_of_it.steps,
            "curve": [total(counts[a:b]).tokens_per_step for a, b in pairwise(_CURVE) if b <= len(counts)],
            "back_after": back_after(after, counts[begun : begun + PART]),
            "reliability": reliability(all_of_it.edges),
        }
        edges += all_of_it.edges
        drafter_s, num_steps = drafter_s + stream.drafter_s, num_steps + stream.num_steps
    return {"kinds": found, "reliability": reliability(edges), "drafter_us_per_step": drafter_s / num_steps * 1e6}


def drafters(target: Target) -> dict[str, Callable[[], Drafter]]:
    """Makers by name."""

    def made(config: dict[str, Any]) -> Drafter:
        return make_drafter(draft_config(config), target)

    def weighed() -> Drafter:
        drafter = made({"method": "memory"})
        assert isinstance(drafter, MemoryDrafter)
        drafter.memory.learn = lambda token_ids, first: None  # type: ignore[method-assign]
        return drafter

    return {
        "forgetful": lambda: made({"method": "auto", "memory": False}),
        "weighed": weighed,
        "memory": lambda: made({"method": "memory"}),
    }


def table(results: dict[str, Any]) -> str:
    """For people, as Markdown."""
    lines = [
        "| kind | drafter | first 50 | last 50 | last / first | all 200 | nodes | error of the chances | back after |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in next(iter(results.values()))["kinds"]:
        for name, found in results.items():
            k = found["kinds"][kind]
            lines.append(
                f"| {kind} | {name} | {k['first']:.2f} | {k['last']:.2f} | {k['ratio']:.2f} | {k['all']:.2f} | {k['nodes']:.1f} "
                f"| {k['reliability']['error']:.3f} | {k['back_after']} |"
            )
    for name, found in results.items():
        kinds = found["kinds"].values()
        mean = {key: _mean([k[key] for k in kinds]) for key in ("first", "last", "ratio", "all")}
        lines.append(
            f"| geometric mean | {name} | {mean['first']:.2f} | {mean['last']:.2f} | {mean['ratio']:.2f} | {mean['all']:.2f} | "
            f"| {found['reliability']['error']:.3f} | {max(k['back_after'] for k in kinds)} at most |"
        )
    return "\n".join(lines)


def curves(results: dict[str, Any]) -> str:
    """How the other drafters compare with the first one as requests go by, all kinds together."""
    (base, first), *others = results.items()
    parts = [f"{a + 1} to {b}" for a, b in pairwise(_CURVE)]
    lines = [
        f"| tokens a step over those of {base}, requests | " + " | ".join(parts) + " |",
        "|---|" + "--:|" * len(parts),
    ]
    for name, found in others:
        ratios = [
            _mean([own / other for own, other in zip(values, base_values, strict=True)])
            for values, base_values in zip(_by_part(found), _by_part(first), strict=True)
        ]
        lines.append(f"| {name} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    return "\n".join(lines)


def _by_part(found: dict[str, Any]) -> list[tuple[float, ...]]:
    return list(zip(*(kind["curve"] for kind in found["kinds"].values()), strict=True))


def _mean(values: Sequence[float]) -> float:
    product = 1.0
    for value in values:
        product *= value
    return product ** (1 / len(values))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, write all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--limit", type=int, help="requests of each kind")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = read_answers(options.answers)
    by_kind = {
        kind: [(row["prompt"], row["answer"]) for row in rows if row["kind"] == kind and row["answer"]][: options.limit]
        for kind in KINDS
    }
    model = load_model()
    target = Target(model.decoder, model)
    results = {name: measure(make, by_kind, options.nodes) for name, make in drafters(target).items()}
    print(table(results), curves(results), sep="\n\n")
    for name, found in results.items():
        print(
            f"{name}: {found['drafter_us_per_step']:.0f} us a step in the drafter, learning included, in a loop without passes"
        )
    if options.out:
        options.out.write_text(json.dumps({"nodes": options.nodes, "drafters": results}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
