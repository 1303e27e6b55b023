"""Tokens per step of the lossless rules for the same drafts: what the promise "the same tokens" costs beside "the same law".

    python benchmarks/match_and_rejection.py PROMPTS.jsonl [--limit 20] [--max-tokens 96] [--k 4] [--model M]

Drafters of three qualities, all chains of k: the model itself in int4, and its first layers (all but 2, all but 5). Prints a
line of JSON a row, then a Markdown table. Counts, not times: a busy machine does not matter.
"""

import argparse
import json
from pathlib import Path

from foreword.cli.prompt_file import read_prompts
from foreword.draft.model.draft_model import DraftModelOptions, ModelDrafter
from foreword.draft.model.layerskip import LayerSkipDrafter, LayerSkipOptions
from foreword.engine.engine import Engine
from foreword.engine.fixed_policy import FixedController
from foreword.engine.llm import LLM, load_model
from foreword.engine.step import StepParts
from foreword.runtime.native_runtime import NativeRuntime
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.verify.base import make_verifier

RULES = ("match", "rejection", "block")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default=None)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--temperatures", default="0.7,1.0")
    args = parser.parse_args()

    model = load_model(args.model, runtime="native")
    lines = read_prompts(args.prompts, None)
    lines = lines[:: max(1, len(lines) // args.limit)][: args.limit]
    int4 = NativeRuntime("int4").decoder(model.checkpoint.spec, model.checkpoint)
    layers = model.checkpoint.spec.num_layers
    makers = {
        "the model in int4": lambda target, mode: ModelDrafter(
            int4, target.spec.vocab_size, DraftModelOptions(), draft_mode=mode
        ),
        f"first {layers - 2} layers": lambda t, mode: LayerSkipDrafter(
            t, LayerSkipOptions(exit_layer=layers - 2), mode
        ),
        f"first {layers - 5} layers": lambda t, mode: LayerSkipDrafter(
            t, LayerSkipOptions(exit_layer=layers - 5), mode
        ),
    }
    rows = []
    for temperature in map(float, args.temperatures.split(",")):
        for draft, make in makers.items():
            for name in RULES:
                rule = make_verifier(name)
                llm = LLM(model, "none", prefix_cache=False)
                target = Target(model.decoder, model)
                parts = StepParts(FixedController(args.k, draft), make(target, rule.draft_mode), target, rule)
                llm.replace_engine(Engine(parts, batch_size=8))
                params = SamplingParams(temperature=temperature, max_tokens=args.max_tokens, seed=1)
                prompts = [[{"role": "user", "content": line.turns[0]}] for line in lines if line.turns]
                results = llm.generate(prompts, params)
                tokens = sum(r.stats.new_tokens - 1 for r in results)
                steps = sum(r.stats.num_steps for r in results)
                rows.append((temperature, draft, name, tokens / steps))
                row = {"temperature": temperature, "draft": draft, "rule": name, "tokens": tokens, "steps": steps}
                print(json.dumps(row | {"tokens_per_step": round(tokens / steps, 3)}), flush=True)
    print(table(rows))


def table(rows: list[tuple[float, str, str, float]]) -> str:
    """The rules side by side."""
    found = {(t, draft, rule): value for t, draft, rule, value in rows}
    lines = ["| temperature | draft | match | rejection | block | match / rejection |", "|---|---|---|---|---|---|"]
    for t, draft in dict.fromkeys((t, draft) for t, draft, _, _ in rows):
        values = [found[t, draft, rule] for rule in RULES]
        cells = " | ".join(f"{v:.2f}" for v in values)
        lines.append(f"| {t:g} | {draft} | {cells} | {values[0] / values[1]:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
