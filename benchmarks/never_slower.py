"""Is `auto` ever slower than plain decoding? Texts on which nothing can be gained, timed in pairs.

    python benchmarks/never_slower.py --pairs 20 --out never_slower.json

    words     prompts of random words at temperature 1 (greedy answers to them go round in circles, which drafting gains by)
    wrong     the same prompts, greedy, and a drafter that is always wrong and always sure of itself, under the adaptive policy
    hot       ordinary prompts at temperature 1.5: the text repeats nothing

Every pair is one prompt through `none` and through the adaptive drafter, in one process over one loaded model, step by step in
turn: whoever has fewer tokens takes the next step, so that both see the same moods of the machine. What counts is the 95 % lower
bound of the ratio of decoding times (bootstrap over pairs): at least 0.98.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

from foreword.adapt.controller import AdaptiveController
from foreword.adapt.timing import costs_of
from foreword.bench.intervals import ratio_of
from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.engine.engine import Engine
from foreword.engine.llm import LLM, LoadedModel, load_model
from foreword.engine.result import Result
from foreword.engine.result_of import result_of
from foreword.engine.step import StepParts
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tune.default_prompts import PROMPTS
from foreword.verify.base import make_verifier

GOAL = 0.98
_WORDS = [
    "amber", "basin", "cobalt", "drift", "ember", "fossil", "gravel", "harbor", "ivory", "jigsaw", "kernel",
    "lantern", "meadow", "nectar", "orchid", "pepper", "quarry", "ribbon", "saddle", "timber", "umbra", "velvet",
    "walnut", "xenon", "yonder", "zephyr", "anvil", "bramble", "cinder", "dapple", "easel", "flint",
]  # fmt: skip
_NUM_NODES = 8


@final
class WrongDrafter(BaseDrafter):
    """Proposes a chain of a token that the target never says, and states it as nearly certain.

    Args:
        token: such a token.
        draft_s: time that each proposal takes, as a drafter with weights would.
    """

    name = "wrong"

    def __init__(self, token: int, draft_s: float = 0.0) -> None:
        self.token, self.draft_s = token, draft_s

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """A sure and wrong chain each."""
        if any(plan.num_nodes for plan in plans):
            end_s = time.perf_counter() + self.draft_s
            while time.perf_counter() < end_s:
                pass
        return [self._chain(known_ids(r, plan), plan) for r, plan in zip(requests, plans, strict=True)]

    def _chain(self, known: Sequence[int], plan: Plan) -> DraftTree:
        length = min(plan.num_nodes, plan.depth)
        tree = DraftTree.chain(known, [self.token] * length)
        return DraftTree(
            tree.token_ids, tree.parents, len(known), [1.0] * len(known) + [0.95**i for i in range(1, length + 1)]
        )


def llm_with(model: LoadedModel, drafter: BaseDrafter) -> LLM:
    """An adaptive `LLM` around a drafter object."""
    llm = LLM(model, "none", batch_size=1, prefix_cache=False)
    target = Target(model.decoder, model)
    parts = StepParts(
        AdaptiveController(costs_of(target), _NUM_NODES, drafter.name), drafter, target, make_verifier("match")
    )
    llm.replace_engine(Engine(parts, 1))
    return llm


def random_words(count: int, num_words: int, seed: int) -> list[str]:
    """Prompts without sense or repetition."""
    rng = random.Random(seed)  # noqa: S311
    return ["Go on with this list: " + " ".join(rng.sample(_WORDS, num_words)) for _ in range(count)]


def pairs_of(
    plain: LLM, ahead: LLM, prompts: Sequence[list[int]], params: SamplingParams, num_pairs: int
) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """Decoding seconds of each pair, plain first; and what was drafted."""
    for llm in (plain, ahead):
        llm.generate([prompts[0]], SamplingParams(max_tokens=8, ignore_eos=True))
    pairs: list[tuple[float, float]] = []
    num_drafted = num_steps = 0
    for number in range(num_pairs):
        seconds, answers = in_turn((plain, ahead), prompts[number % len(prompts)], params, first=number % 2)
        if answers[0].token_ids != answers[1].token_ids and plain.model.choice.name == "native":
            raise SystemExit(f"pair {number}: other tokens than plain decoding's")
        pairs.append((seconds[0], seconds[1]))
        num_drafted += answers[1].stats.drafted_tokens
        num_steps += answers[1].stats.num_steps
    return pairs, {"drafted_per_step": num_drafted / max(num_steps, 1)}


def in_turn(
    llms: Sequence[LLM], prompt: list[int], params: SamplingParams, first: int
) -> tuple[list[float], list[Result]]:
    """Seconds that each takes for the prompt's answer after its first token, and the answers.

    The one with fewer tokens takes the next step; of those with as many, the one after the one before. Engines run by themselves,
    each in a thread of its own, so their steps are asked for there, one at a time.
    """
    unseen = DraftingParams(remember=False)  # prompts come again, and a memory would copy its own answer
    prepared = [llm._input.prepare([prompt], params, unseen)[0] for llm in llms]
    requests = [one.request(0) for one in prepared]
    for llm, request in zip(llms, requests, strict=True):
        llm._loop.call(partial(llm.engine.add, request)).result()
        while not request.new_ids:
            timed_step(llm)
    seconds, last = [0.0 for _ in llms], first
    while left := [i for i, request in enumerate(requests) if not request.is_finished]:
        last = min(left, key=lambda i: (len(requests[i].new_ids), i == last))
        seconds[last] += timed_step(llms[last])
    return seconds, [result_of(request, one.model) for request, one in zip(requests, prepared, strict=True)]


def timed_step(llm: LLM) -> float:
    """Seconds of an engine's next step, in its own thread."""

    def step() -> float:
        start_s = time.perf_counter()
        llm.engine.step()
        return time.perf_counter() - start_s

    return llm._loop.call(step).result()


def never_said(llm: LLM, prompts: Sequence[list[int]], params: SamplingParams) -> int:
    """A token that no answer to these prompts contains."""
    said = {token for prompt in prompts for token in llm.generate([prompt], params)[0].token_ids}
    return next(token for token in range(llm.model.checkpoint.spec.vocab_size) if token not in said)


def main() -> int:
    """Measure all texts; returns 1 where the bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--draft-ms", type=float, default=0.5, help="What the wrong drafter's proposals take.")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()

    model = load_model(args.model, threads=args.threads)
    plain = LLM(model, "none", batch_size=1, prefix_cache=False)
    words = [plain.encode(text) for text in random_words(args.pairs, 24, seed=1)]
    chat = [plain.encode([{"role": "user", "content": text}]) for text in PROMPTS.values()]
    greedy = SamplingParams(max_tokens=args.max_tokens, ignore_eos=True)
    hot = SamplingParams(max_tokens=args.max_tokens, ignore_eos=True, temperature=1.5, seed=11)
    wrong = WrongDrafter(never_said(plain, words, greedy), args.draft_ms / 1e3)
    texts = {
        "words": (LLM(model, "auto", batch_size=1, prefix_cache=False), words, replace(hot, temperature=1.0)),
        "wrong": (llm_with(model, wrong), words, greedy),
        "hot": (LLM(model, "auto", batch_size=1, prefix_cache=False), chat, hot),
    }
    report: dict[str, Any] = {"model": model.checkpoint.source, "goal": GOAL, "pairs": args.pairs}
    for name, (ahead, prompts, params) in texts.items():
        pairs, facts = pairs_of(plain, ahead, prompts, params, args.pairs)
        ratio = ratio_of(pairs)
        report[name] = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "seconds": pairs} | facts
        print(f"{name}: {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})", file=sys.stderr, flush=True)
    report["holds"] = all(report[name]["low"] >= GOAL for name in texts)
    text = json.dumps(report, indent=1)
    if args.out is None:
        print(text)
    else:
        args.out.write_text(text + "\n")
    return 0 if report["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
