"""Many tokens, several drafters, no difference: `make soak`.

Every prompt is answered by plain decoding and by each drafter, greedy and sampled. On the native runtime not one token may differ; on
torch a difference must be a proven near-tie. `oracle` drafts the plain answer itself with wrong tokens planted in it, so that every
split point of a draft occurs.
"""

import random
import sys
import time
from collections.abc import Sequence

from foreword.bench.fidelity import LOGIT_TOLERANCE, explain_difference
from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.engine.engine import Engine
from foreword.engine.fixed_policy import FixedController
from foreword.engine.llm import LLM, LoadedModel, load_model
from foreword.engine.request import Request
from foreword.engine.step import StepParts
from foreword.errors import FidelityError
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Matching

_TOPICS = (
    "the sea", "prime numbers", "a cat named Tom", "baking bread", "gravity", "the city of Rome", "binary search", "rain",
    "chess", "photosynthesis",
)  # fmt: skip
_TASKS = (
    "Write a short story about {}.", "Explain {} to a child.", "List ten facts about {}.", "Write a Python class for {}.",
    "Translate into French: I like {} very much.", "Write a poem about {}.", "Summarize what you know about {}.",
    "Repeat three times: {}, {}, {}.", "Ask me five questions about {}.", "Compare {} with its opposite.",
)  # fmt: skip


class FlawedOracle(BaseDrafter):
    """Knows the plain answers and drafts them with seeded flaws: chains, trees, empty steps, bursts."""

    name = "oracle"

    def __init__(self, answers: dict[tuple[int, ...], list[int]], vocab_size: int, seed: int = 0) -> None:
        self.answers, self.vocab_size, self.rng = answers, vocab_size, random.Random(seed)  # noqa: S311

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """Right tokens up to a random depth, wrong ones beyond and beside."""
        return [self._tree(r, plan) for r, plan in zip(requests, plans, strict=True)]

    def _tree(self, request: RequestView, plan: Plan) -> DraftTree:
        known = list(known_ids(request, plan))
        tokens, parents = known, list(range(-1, len(known) - 1))
        answer = self.answers[tuple(request.token_ids[: request.prompt_len])]
        to_come = answer[len(request.token_ids) - request.prompt_len :]
        parent = len(known) - 1
        num_known, size = len(known), self.rng.randint(0, plan.num_nodes)
        for token in to_come[: plan.depth]:
            if len(tokens) - num_known + 2 > size:
                break
            wrong = (token + self.rng.randint(1, self.vocab_size - 1)) % self.vocab_size
            siblings = [token, wrong] if self.rng.random() < 0.5 else [wrong, token]
            if self.rng.random() < 0.2:
                siblings = [wrong]
            tokens = [*tokens, *siblings]
            parents = [*parents, *[parent] * len(siblings)]
            parent = len(tokens) - len(siblings) + siblings.index(token if token in siblings else wrong)
        return DraftTree(tokens, parents, num_known)


def soak(model: LoadedModel, num_prompts: int, tokens_per_run: int, *, batch_size: int = 4) -> dict[str, int]:
    """Generate and compare; returns counts. Raises `FidelityError` with the first real difference."""
    prompts = soak_prompts(num_prompts)
    counts = {"tokens": 0, "near_ties": 0}
    for options in ({}, {"temperature": 0.8, "seed": 17}, {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "seed": 3}):
        params = SamplingParams(max_tokens=tokens_per_run, ignore_eos=True, **options)
        plain = LLM(model, "none", batch_size=1).generate(prompts, params)
        ngram = LLM(model, "ngram", batch_size=batch_size).generate(prompts, params)
        answers = {tuple(r.prompt_token_ids): r.token_ids for r in plain}
        oracle = _run_oracle(model, list(answers), params, answers, batch_size)
        for plain_result, *others in zip(plain, [r.token_ids for r in ngram], oracle, strict=True):
            for token_ids in others:
                counts["tokens"] += len(token_ids)
                _compare(model, plain_result.prompt_token_ids, plain_result.token_ids, token_ids, params, counts)
    return counts


def soak_prompts(count: int) -> list[list[dict[str, str]]]:
    """Up to 100 different chat prompts."""
    texts = [task.replace("{}", topic) for task in _TASKS for topic in _TOPICS]
    return [[{"role": "user", "content": text}] for text in texts[:count]]


def _run_oracle(
    model: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    params: SamplingParams,
    answers: dict[tuple[int, ...], list[int]],
    batch_size: int,
) -> list[list[int]]:
    spec = model.checkpoint.spec
    drafter = FlawedOracle(answers, spec.vocab_size)
    parts = StepParts(FixedController(12, "oracle"), drafter, Target(model.decoder), Matching())
    engine = Engine(parts, batch_size)
    requests = [Request(list(p), params, context_len=spec.context_len) for p in prompts]
    for request in requests:
        engine.add(request)
    while any(not r.is_finished for r in requests):
        engine.step()
    return [r.new_ids for r in requests]


def _compare(
    model: LoadedModel,
    prompt_ids: list[int],
    plain_ids: list[int],
    other_ids: list[int],
    params: SamplingParams,
    counts: dict[str, int],
) -> None:
    tolerance = LOGIT_TOLERANCE[model.choice.dtype]
    sampler = Request(prompt_ids, params, context_len=1 << 40).sampler
    difference = explain_difference(model.decoder, prompt_ids, plain_ids, other_ids, sampler, tolerance)
    if difference is None:
        return
    if tolerance == 0 or not difference.is_near_tie:
        raise FidelityError(str(difference))
    counts["near_ties"] += 1


def main() -> None:
    """`python -m foreword.bench.soak [PROMPTS] [TOKENS]`: on the default model and runtime."""
    num_prompts, tokens_per_run = (int(a) for a in (sys.argv[1:] + ["100", "170"][len(sys.argv) - 1 :])[:2])
    model = load_model(None, show_progress=True)
    start_s = time.perf_counter()
    counts = soak(model, num_prompts, tokens_per_run)
    sys.stdout.write(
        f"{counts['tokens']} speculative tokens, none differing but for {counts['near_ties']} near-ties, "
        f"{model.choice.name} {model.choice.dtype}, {time.perf_counter() - start_s:.0f} s\n"
    )


if __name__ == "__main__":
    main()
