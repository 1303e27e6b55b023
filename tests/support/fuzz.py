"""Random combinations of prompts, options, drafters and batches, each a function of one number, against plain decoding.

    combo = make_combo(17, files)      what number 17 stands for
    check(combo, models)               None, or what differs

Plain decoding is the same model without a drafter, one request at a time, prompts read whole.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foreword.adapt.controller import AdaptiveController
from foreword.adapt.cost_model import PassCosts
from foreword.bench.fidelity import explain_difference
from foreword.engine.fixed_policy import FixedController
from foreword.engine.llm import LLM
from foreword.engine.request import Request
from foreword.engine.result import Result
from foreword.engine.step_clock import StepTimes
from foreword.errors import ForewordError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.grammar import Grammar
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import LoadedModel
from tests.support.fuzz_callers import STYLES, ask
from tests.support.tiny_llm import VOCAB_SIZE, TinyFiles

TOLERANCE = 1e-4  # float32 of this model moves by less than 1e-5 when the width of a pass changes
RUNTIMES = ("torch", "native")
_SCRATCH = 64  # rows for drafts
GRAMMARS = (
    Grammar.regex("(ab|ba){2,6}c?"),
    Grammar.regex("[a-d ]{3,20}"),
    Grammar.choice(["abc bad", "abc cab", "face", "a", "世é"]),
    Grammar.json_schema(
        {
            "type": "object",
            "properties": {"a": {"enum": [0, 1, "bad"]}, "b": {"type": "array", "items": {"enum": ["a", 10]}}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    ),
)
STOPS = ("a", "ab", " b", "bad", "世", "é", "{", "cab c", "\ufffd", "ee", "hh", '"')


@dataclass(frozen=True)
class Combo:
    """What one number stands for."""

    number: int
    runtime: str
    drafter: Mapping[str, Any]
    verifier: str
    policy: str
    batch_size: int
    prefill_chunk: int
    prompts: Sequence[list[int]]
    params: Sequence[SamplingParams]
    drafting: Sequence[DraftingParams]
    style: str  # how it is asked: a name of support.fuzz_callers
    context_len: int
    goes_on: bool  # a second call continues the conversations of the first
    room: float | None  # memory for keys and values, in requests of the longest kind; None for enough
    first_rows: int  # of a region beyond what is known

    def __str__(self) -> str:
        return (
            f"{self.style}: {self.runtime} {dict(self.drafter)} {self.verifier} {self.policy} batch {self.batch_size} "
            f"chunk {self.prefill_chunk} {len(self.prompts)} prompts"
        )


@dataclass
class Count:
    """What a run came to."""

    calls: int = 0  # a combination that goes on counts twice
    refused: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    near_ties: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    by_drafter: dict[str, list[int]] = field(default_factory=dict)  # calls, drafted, accepted

    def add(self, combo: Combo, results: Sequence[Result]) -> None:
        drafted = sum(r.stats.drafted_tokens for r in results)
        accepted = sum(r.stats.accepted_tokens for r in results)
        method = combo.drafter["method"]
        self.calls += 1
        self.tokens += sum(len(r.token_ids) for r in results)
        self.drafted += drafted
        self.accepted += accepted
        row = self.by_drafter.setdefault("cascade" if "," in method else method, [0, 0, 0])
        for i, n in enumerate((1, drafted, accepted)):
            row[i] += n


def make_combo(number: int, files: TinyFiles) -> Combo:
    """The combination of this number."""
    rng = random.Random(number)
    drafter = _drafter(rng, files)
    verifier = rng.choice(("match",) * 5 + ("rejection", "block", "typical"))
    if (drafter["method"], verifier) == ("medusa", "block"):
        drafter["draft_tree_width"] = 1  # block takes chains
    num_prompts = rng.randint(1, 4)
    style = rng.choice(("generate",) * 6 + tuple(STYLES))
    spec = files.shape.spec
    params = [_params(rng, verifier != "match") for _ in range(num_prompts)]
    return Combo(
        number=number,
        runtime="torch" if rng.random() < 0.6 else "native",
        drafter=drafter,
        verifier=verifier,
        policy="adaptive" if drafter["method"] == "auto" else rng.choice(("fixed",) * 3 + ("history", "adaptive")),
        batch_size=rng.randint(1, 4),
        prefill_chunk=rng.choice((1, 2, 3, 7, 16, 512)),
        prompts=_prompts(rng, spec.vocab_size, spec.context_len, num_prompts),
        params=params,
        drafting=[_drafting(rng) for _ in range(num_prompts)],
        style=style,
        context_len=spec.context_len,
        goes_on=rng.random() < 0.25,
        room=rng.choice((None, None, 1.0, 1.7, 2.5)),
        first_rows=rng.choice((4, 40, 512)),
    )


def run_combos(numbers: Sequence[int], files: TinyFiles, models: Mapping[str, LoadedModel]) -> Count:
    """All of them; those of a runtime that is not there are left out."""
    count = Count()
    for number in numbers:
        combo = make_combo(number, files)
        if combo.runtime in models:
            check(combo, models[combo.runtime], count)
    return count


def check(combo: Combo, model: LoadedModel, count: Count) -> None:
    """Compare one combination with plain decoding, and count what was found."""
    try:
        llm = _llm(model, combo)
    except ForewordError:
        if model.decoder.spec.num_layers > 1:
            raise
        count.refused += 1  # layerskip and EAGLE-3 need layers to choose from
        return
    prompts = list(combo.prompts)
    for _ in range(2 if combo.goes_on else 1):
        plain = LLM(model, "none", batch_size=1, prefix_cache=False).generate(prompts, list(combo.params))
        results = ask(combo.style, llm, prompts, combo.params, combo.drafting, combo.number)
        count.add(combo, results)
        each = [params for params in combo.params for _ in range(params.n)]
        for index, (params, mine, theirs) in enumerate(zip(each, results, plain, strict=True)):
            problem = difference(mine, theirs, exactly=combo.runtime == "native")
            if problem is not None:
                _report(combo, model, params, mine, theirs, f"answer {index}: {problem}", count)
        firsts = [result for result in plain if result.sample_index == 0]
        prompts = [
            [*prompt, *result.token_ids, 1, 2][: combo.context_len - 8]
            for prompt, result in zip(prompts, firsts, strict=True)
        ]


def difference(mine: Result, theirs: Result, *, exactly: bool) -> str | None:
    """What two answers differ in; None if in nothing. Log-probabilities need be equal only where that is promised."""
    for name in ("token_ids", "finish_reason", "text", "stop_string", "sample_index", "prompt_token_ids"):
        if getattr(mine, name) != getattr(theirs, name):
            return f"{name}: {getattr(mine, name)} and plainly {getattr(theirs, name)}"
    for name in ("logprobs", "prompt_logprobs"):
        ours, plain = getattr(mine, name), getattr(theirs, name)
        if exactly and ours != plain:
            return f"{name} differ"
        if (ours is None) != (plain is None):
            return f"{name} are missing"
        for a, b in zip(ours or (), plain or (), strict=True):
            if (a is None) != (b is None) or (a is not None and abs(a.logprob - b.logprob) > TOLERANCE):
                return f"{name}: {a} and plainly {b}"
    if mine.stats.new_tokens != len(mine.token_ids) or mine.stats.accepted_tokens > mine.stats.drafted_tokens:
        return f"counts: {mine.stats}"
    return None


def _report(
    combo: Combo,
    model: LoadedModel,
    params: SamplingParams,
    mine: Result,
    theirs: Result,
    problem: str,
    count: Count,
) -> None:
    """A near-tie or a fault, as the command that repeats it."""
    line = f"python -m benchmarks.fuzz --first {combo.number} --count 1   # {combo}; {problem}"
    if combo.runtime == "torch" and mine.token_ids != theirs.token_ids:
        request = Request(
            theirs.prompt_token_ids,
            replace(params, seed=theirs.seed),
            context_len=combo.context_len,
            sample_index=theirs.sample_index,
        )
        found = explain_difference(
            model.decoder, theirs.prompt_token_ids, theirs.token_ids, mine.token_ids, request.sampler, TOLERANCE
        )
        if found is not None and found.is_near_tie:
            count.near_ties.append(f"{line}; {found}")
            return
    count.faults.append(line)


def _llm(model: LoadedModel, combo: Combo) -> LLM:
    llm = LLM(model, combo.drafter, verifier=combo.verifier, batch_size=combo.batch_size, policy="fixed")
    parts = llm.engine.parts
    fixed: Any = parts.controller
    if combo.policy == "history":
        from foreword.adapt.history import HistoryController

        fixed = HistoryController(fixed.num_nodes, fixed.drafter)
    fixed.prefill_chunk = combo.prefill_chunk
    controller = fixed
    if combo.policy == "adaptive":
        controller = ByTheBook(fixed, combo.number)
    llm.engine.parts = replace(parts, controller=controller)
    memory = llm.engine.memory
    memory.first_rows = combo.first_rows
    if combo.room is not None:
        most = parts.target.cache.region_bytes(combo.context_len + _SCRATCH)
        memory.budget = replace(memory.budget, total_bytes=int(most * combo.room))
    return llm


class ByTheBook(AdaptiveController):
    """The adaptive policy in a world where passes take the times of a table, so that a run repeats."""

    def __init__(self, fixed: FixedController, number: int) -> None:
        costs = PassCosts([1, 2, 4, 8, 16, 32], [1.0, 1.05, 1.2, 1.5, 2.1, 3.6], [0.0] * 6)
        super().__init__(costs, fixed.num_nodes, fixed.drafter)
        self._fixed, self._rng = fixed, random.Random(number)

    def observe(self, requests, record, times) -> None:
        target_s = self._rng.uniform(0.8, 1.3) * (1 + 0.08 * sum(tree.num_nodes for tree in record.trees))
        super().observe(requests, record, StepTimes(draft_s=0.05, target_s=target_s, pack_s=0.05))


def _prompts(rng: random.Random, vocab_size: int, context_len: int, number: int) -> list[list[int]]:
    """Some begin as the first one does."""
    prompts = [_prompt(rng, vocab_size, context_len) for _ in range(number)]
    for index in range(1, number):
        if rng.random() < 0.4:
            shared = prompts[0][: rng.randint(1, len(prompts[0]))]
            prompts[index] = [*shared, *prompts[index][:3]][: context_len - 1]
    return prompts


def _drafter(rng: random.Random, files: TinyFiles) -> dict[str, Any]:
    width = rng.choice((1, 1, 2, 3))
    model_options = {"draft_tree_width": width, "draft_confidence_threshold": rng.choice((0.0, 0.0, 0.3))}
    makers: dict[str, Any] = {
        "ngram": lambda: {"prompt_lookup_max": rng.randint(1, 5)},
        "suffix": lambda: {
            "suffix_decoding_tree": rng.random() < 0.6,
            "suffix_decoding_max_cached_requests": rng.choice((0, 2)),
            "suffix_decoding_max_tree_depth": rng.choice((3, 24)),
            "suffix_decoding_min_token_prob": rng.choice((0.0, 0.1)),
        },
        "recycling": lambda: {
            "recycling_top_k": rng.randint(1, 8),
            "recycling_per_request": rng.random() < 0.5,
        },
        "lookahead": lambda: {
            "lookahead_window": rng.randint(1, 4),
            "lookahead_ngram": rng.randint(2, 4),
            "lookahead_guesses": rng.randint(1, 4),
            "lookahead_pool_from_prompt": rng.random() < 0.5,
        },
        "ngram_lm": lambda: {"model": str(files.ngram_lm)},
        "layerskip": lambda: {"exit_layer": 1, **model_options},
        "draft_model": lambda: {"model": str(rng.choice((files.draft, files.draft, files.target))), **model_options},
        "universal": lambda: {"method": "draft_model", "model": str(files.other)},
        "eagle": lambda: {"model": str(files.eagle), "draft_tree_width": width},
        "eagle2": lambda: {"model": str(files.eagle), "draft_tree_width": width + 1},
        "eagle3": lambda: {
            "model": str(rng.choice((files.eagle3, files.eagle3_reduced))),
            "draft_tree_width": width,
            "draft_tree_depth": rng.choice((2, 5)),
        },
        "medusa": lambda: {
            "model": str(rng.choice((files.medusa, files.medusa_reduced))),
            "draft_tree_width": rng.choice((None, 1, 2)),
        },
        "cascade": lambda: {
            "method": ",".join(rng.sample(["ngram", "suffix", "recycling", "lookahead", "layerskip", "memory",
                                           f"draft_model={files.draft}", f"eagle3={files.eagle3}",
                                           f"ngram_lm={files.ngram_lm}"], rng.randint(2, 4))),
            **rng.choice(({"cascade_merge": True}, {"cascade_threshold": rng.choice((0.0, 0.5, 1.5))})),
        },
        "auto": lambda: rng.choice(({}, {}, {"memory": False})),
        "memory": lambda: {"memory_bytes": rng.choice((1 << 16, 1 << 20))},
    }  # fmt: skip
    name = rng.choice(tuple(makers))
    return {"method": name, **makers[name](), "num_speculative_tokens": rng.choice((1, 2, 3, 4, 6, 8, 12))}


def _prompt(rng: random.Random, vocab_size: int, context_len: int) -> list[int]:
    longest = context_len - 1
    length = min(longest, rng.choice((1, 2, 5, rng.randint(1, 40), rng.randint(longest * 2 // 3, longest))))
    if rng.random() < 0.4:  # a text that repeats itself
        part = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 6))]
        return (part * length)[:length]
    return [rng.randrange(vocab_size) for _ in range(length)]


def _drafting(rng: random.Random) -> DraftingParams:
    reference = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 30))] if rng.random() < 0.15 else None
    number = rng.choice((0, 1, 3, 9)) if rng.random() < 0.15 else None
    return DraftingParams(
        enabled=rng.random() < 0.93,
        num_speculative_tokens=number,
        reference=reference,
        remember=rng.random() < 0.9,
    )


def _params(rng: random.Random, is_greedy: bool) -> SamplingParams:
    options: dict[str, Any] = {"max_tokens": rng.choice((0, 1, 2, 9, 16, 24, 24, 32)), "seed": rng.randrange(1 << 32)}
    if not is_greedy and rng.random() < 0.6:
        options |= {"temperature": rng.choice((1e-5, 0.3, 0.8, 1.0, 1.7))}
        options |= _some(rng, {
            "top_k": lambda: rng.randint(1, 20), "top_p": lambda: rng.choice((0.3, 0.8, 0.95)),
            "min_p": lambda: rng.choice((0.02, 0.3)),
        }, 0.3)  # fmt: skip
    if rng.random() < 0.15:
        options["grammar"] = rng.choice(GRAMMARS)
        options |= _some(rng, _penalties(rng), 0.15)
    else:
        options |= _some(rng, {**_penalties(rng), **_limits(rng, options["max_tokens"])}, 0.15)
    options |= _some(rng, {"n": lambda: rng.randint(2, 3), "logprobs": lambda: rng.choice((0, 2))}, 0.12)
    if rng.random() < 0.08:
        options["prompt_logprobs"] = 1
    return SamplingParams(**options)


def _some(rng: random.Random, makers: Mapping[str, Any], chance: float) -> dict[str, Any]:
    return {name: make() for name, make in makers.items() if rng.random() < chance}


def _penalties(rng: random.Random) -> dict[str, Any]:
    return {
        "repetition_penalty": lambda: rng.choice((0.8, 1.1, 1.5)),
        "presence_penalty": lambda: rng.choice((-0.4, 0.6)),
        "frequency_penalty": lambda: rng.choice((-0.2, 0.3)),
    }


def _limits(rng: random.Random, max_tokens: int) -> dict[str, Any]:
    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(VOCAB_SIZE), count))

    return {
        "logit_bias": lambda: {token: rng.choice((-100.0, -2.0, 1.5, 3.0)) for token in ids(rng.randint(1, 6))},
        "allowed_token_ids": lambda: ids(rng.randint(8, 30)),
        "bad_words": lambda: tuple(ids(rng.randint(2, 3)) for _ in range(rng.randint(1, 12))),
        "min_tokens": lambda: rng.randint(0, max_tokens),
        "stop_token_ids": lambda: ids(rng.randint(1, 4)),
        "stop": lambda: tuple(rng.sample(STOPS, rng.randint(1, 4))),
        "ignore_eos": lambda: True,
        "logits_processors": lambda: rng.choice(((no_threes,), (Tally(),), (Tally(), no_threes))),
    }


def no_threes(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A user's processor: never token 3 after an even token."""
    if token_ids[-1] % 2 == 0:
        logits[3] = float("-inf")
    return logits


class Tally:
    """A user's stateful processor: token 7 becomes likelier until it comes."""

    def __init__(self, since: int = 0) -> None:
        self.since = since

    def clone(self) -> "Tally":
        return Tally(self.since)

    def accept(self, token_id: int) -> None:
        self.since = 0 if token_id == 7 else self.since + 1

    def __call__(self, token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        logits[7] += 0.4 * self.since
        return logits
