"""Every drafter without training against plain decoding on the default model: are they the same tokens?

    python -m benchmarks.equality PROMPTS_FOLDER [--runtime native|torch] [--num-prompts 20] [--max-tokens 48] [--out FILE.json]

Prompts are taken over all categories of the folder's files. On the native runtime (int8) not one token may differ; on torch
(float32) a difference must be a proven near-tie, and is listed. Prints a Markdown table, writes JSON, and exits with 1 after a fault.
"""

import argparse
import json
import time
from pathlib import Path

from foreword.bench.check_run import all_differences
from foreword.cli.prompt_file import PromptLine, read_prompts
from foreword.draft.registry import drafter_types
from foreword.engine.llm import LLM, load_model
from foreword.engine.result import Result
from foreword.sampling.params import SamplingParams

DTYPES = {"native": "int8", "torch": "float32"}
MODES = {"greedy": {}, "sampled": {"temperature": 0.8, "seed": 11}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runtime", choices=DTYPES, default="native")
    parser.add_argument("--model", default=None)
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--draft-model", default=None, help="a draft model of the same or another tokenizer")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()

    model = load_model(args.model, runtime=args.runtime, dtype=DTYPES[args.runtime], threads=args.threads)
    lines = over_categories(args.folder, args.num_prompts)
    plain = LLM(model, "none", batch_size=1, prefix_cache=False)
    prompts = [plain.encode([{"role": "user", "content": line.turns[0]}]) for line in lines if line.turns]
    rows = []
    for mode, draws in MODES.items():
        params = SamplingParams(max_tokens=args.max_tokens, **draws)
        reference = plain.generate(prompts, params)
        for drafter in drafters(args.draft_model or str(model.checkpoint.source)):
            start_s = time.perf_counter()
            results = LLM(model, drafter, batch_size=1, prefix_cache=False).generate(prompts, params)
            found = [all_differences(plain, a, b, params) for a, b in zip(reference, results, strict=True)]
            rows.append(row(drafter, mode, results, found) | {"wall_s": round(time.perf_counter() - start_s, 1)})
            print(json.dumps(rows[-1]), flush=True)
    report = {
        "model": str(model.checkpoint.source), "runtime": args.runtime, "dtype": DTYPES[args.runtime],
        "max_tokens": args.max_tokens, "prompts": [[line.id, line.category] for line in lines], "rows": rows,
    }  # fmt: skip
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(rows))
    return 1 if any(r["faults"] for r in rows) else 0


def drafters(draft_model: str) -> list[dict]:
    """Those that need no training, draft_model with a model, and two cascades."""
    names = [one.name for one in drafter_types() if one.drafts and not one.takes_path]
    configs: list[dict] = [{"method": name} for name in names]
    configs.append({"method": "draft_model", "model": draft_model, "num_speculative_tokens": 3})
    configs.append({"method": "suffix,recycling"})
    configs.append({"method": "ngram,recycling", "cascade_merge": True})
    return configs


def over_categories(folder: Path, num_prompts: int) -> list[PromptLine]:
    """Prompts of every category in turn. A kind after a colon is part of its category."""
    by_category: dict[str, list[PromptLine]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        if path.name == "mt_bench.jsonl" and (folder / "spec_bench.jsonl").is_file():
            continue  # the same questions
        for line in read_prompts(path):
            by_category.setdefault((line.category or "").partition(":")[0], []).append(line)
    chosen: list[PromptLine] = []
    turn = 0
    while len(chosen) < num_prompts and any(len(lines) > turn for lines in by_category.values()):
        chosen += [lines[turn] for lines in by_category.values() if len(lines) > turn]
        turn += 1
    return chosen[:num_prompts]


def row(drafter: dict, mode: str, results: list[Result], found: list) -> dict:
    """One line of the report."""
    stats = [result.stats for result in results]
    steps = sum(s.num_steps for s in stats)
    return {
        "drafter": drafter["method"], "mode": mode, "answers": len(results),
        "tokens": sum(s.new_tokens for s in stats), "same": sum(not differences for differences in found),
        "near_ties": sum(d.is_near_tie for differences in found for d in differences),
        "faults": sum(not d.is_near_tie for differences in found for d in differences),
        "differences": [str(d) for differences in found for d in differences],
        "drafted_tokens": sum(s.drafted_tokens for s in stats), "accepted_tokens": sum(s.accepted_tokens for s in stats),
        "tokens_per_step": round((sum(s.new_tokens for s in stats) - len(stats)) / steps, 3) if steps else None,
    }  # fmt: skip


def table(rows: list[dict]) -> str:
    """The rows in Markdown."""
    names = ("drafter", "mode", "answers", "tokens", "same", "near_ties", "faults", "tokens_per_step")
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(str(r[name]) for name in names) + " |" for r in rows)])


if __name__ == "__main__":
    raise SystemExit(main())
