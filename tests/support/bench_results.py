"""Small benchmarks for tests: the toy model's, run for real."""

import json
from pathlib import Path

from foreword.bench.cells import Cell, make_cells
from foreword.bench.planted_rule import AcceptEverything
from foreword.bench.results import BenchResult, PromptFacts
from foreword.bench.runner import Runner, make_llm
from foreword.bench.workloads import BenchPrompt
from foreword.engine.llm import LLM, LoadedModel
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_llm import byte_tokenizer, toy_llm

PROMPTS = [
    BenchPrompt("a/1 <b>", "chat & more", (1, 2, 3, 1, 2)),
    BenchPrompt("a/2", "chat & more", (4, 4, 4)),
    BenchPrompt("b/1", "code", (5, 6, 7, 5, 6)),
    BenchPrompt("b/2", "code", (7, 3)),
]
SETTINGS = {
    "max_tokens": 12, "repeats": 2, "seed": 0, "ignore_eos": False, "threads": 2, "stratified": None, "drafters": "",
    "speed_of_light": True,
}  # fmt: skip
MACHINE = {"python": "3", "platform": "Toy", "cpu": {"name": "Toy CPU", "logical_cores": 2, "features": ["AVX2"]}}
COST = {
    "widths": {"1": 2.0, "2": 2.2, "8": 4.0}, "floor_ms": 1.5, "context": 16, "bandwidth_gb_per_s": 20.0,
    "weight_bytes": 30e6,
}  # fmt: skip


def toy_model() -> LoadedModel:
    return toy_llm(ToyDecoder(), byte_tokenizer()).model


def make_result(*drafters: str, temperatures=(0.0,), batch_sizes=(1,), verifiers=("match",), **settings) -> BenchResult:
    """Without runs."""
    provenance = {
        "date": "2026-01-01 00:00 UTC", "versions": {"foreword": "0"}, "commit": None, "machine": MACHINE, "model": "toy",
        "model_sha256": "ab", "num_parameters": 1e6, "runtime": "toy", "dtype": "float32", "device": "cpu", "prompt_files": [],
    }  # fmt: skip
    facts = [PromptFacts(p.id, p.category, len(p.token_ids), p.sha256) for p in PROMPTS]
    cells = make_cells(drafters, verifiers, temperatures, batch_sizes)
    return BenchResult(SETTINGS | settings, provenance, facts, cells, pass_cost=COST)


def run_result(result: BenchResult, **options) -> BenchResult:
    Runner(toy_model(), PROMPTS, result, **options).run()
    return result


def planted(model: LoadedModel, cell: Cell) -> LLM:
    """The cell's engine, but with `recycling` under a rule that takes every draft."""
    if cell.drafter != "ngram":
        return make_llm(model, cell)
    return LLM(model, "ngram", verifier=AcceptEverything(), batch_size=1)


def write_comparison(folder: Path, settings=None, cpu="Toy CPU") -> tuple[Path, Path]:
    """What the peers' scripts leave behind for our prompts: the comparison and its prompts."""
    rows = [
        {"prompt_id": i, "category": p.category, "decode_tokens": 10, "decode_s": 0.1 * (i + 1), "token_ids": [1] * 9}
        for i, p in enumerate(PROMPTS)
    ]
    rounds = [{"llama.cpp/q8_0/plain": [{"load_s": 1.0, "versions": {"x": "1"}}, *rows], "foreword/int8/ngram": rows}]
    conditions = {"max_new": 12, "threads": 2, "ignore_eos": False} | (settings or {})
    comparison, prompts = folder / "compare.json", folder / "prompts.jsonl"
    comparison.write_text(json.dumps({"machine": {"cpu": cpu}, "settings": conditions, "rounds": rounds}))
    lines = [{"id": i, "category": p.category, "ids": list(p.token_ids)} for i, p in enumerate(PROMPTS)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return comparison, prompts
