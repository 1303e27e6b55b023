"""foreword as a peer of a side-by-side benchmark: prompts as token ids in, JSON lines out.

    python benchmarks/peer_foreword.py --prompts FILE --max-new 128 --threads 2 [--mode plain|ngram|...] [--ignore-eos]

Each line of FILE is {"id", "category", "ids"}. Prints one line after loading, then one per prompt. Warms up on the longest prompt.
"""

import argparse
import json
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--mode", default="plain", help="plain, or a drafter's name")
    parser.add_argument("--model", default=None)
    parser.add_argument("--runtime", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--draft", type=int, default=None, help="most tokens drafted per step")
    args = parser.parse_args()
    start_s = time.perf_counter()

    import foreword
    from foreword.engine.llm import LLM, load_model
    from foreword.sampling.params import SamplingParams

    model = load_model(args.model, runtime=args.runtime, dtype=args.dtype, threads=args.threads)
    llm = LLM(
        model, "none" if args.mode == "plain" else args.mode, num_speculative_tokens=args.draft, prefix_cache=False
    )
    label = {"peer": "foreword", "mode": args.mode, "precision": model.choice.dtype}
    versions = {"foreword": foreword.__version__, "runtime": model.choice.name}
    show(label, load_s=round(time.perf_counter() - start_s, 2), versions=versions)

    prompts = [json.loads(line) for line in args.prompts.open()]
    params = SamplingParams(max_tokens=args.max_new, ignore_eos=args.ignore_eos)
    llm.generate(max((p["ids"] for p in prompts), key=len), params)
    for prompt in prompts:
        (result,) = llm.generate(prompt["ids"], params)
        stats = result.stats
        show(
            label,
            prompt_id=prompt["id"],
            category=prompt["category"],
            prompt_tokens=stats.prompt_tokens,
            new_tokens=stats.new_tokens,
            prefill_s=round(stats.prefill_s, 5),
            decode_s=round(stats.decode_s, 5),
            decode_tokens=stats.new_tokens - 1,
            tok_per_s=stats.decode_tok_per_s and round(stats.decode_tok_per_s, 2),
            drafted=stats.drafted_tokens,
            accepted=stats.accepted_tokens,
            steps=stats.num_steps,
            token_ids=result.token_ids,
            text=result.text,
        )


def show(label: dict[str, str], **fields: object) -> None:
    print(json.dumps(label | fields), flush=True)


if __name__ == "__main__":
    main()
