"""Perplexity of one model in two precisions on the same text: what quantisation costs in quality.

    python benchmarks/perplexity.py FILE [FILE ...] [--model M] [--tokens 4096] [--window 512] [--dtypes int8,float32,int8:float32]

Each window is read on its own; every token but its first counts. A dtype may be followed by that of the cached keys and values.
Prints JSON.
"""

import argparse
import json
import math
from pathlib import Path

import torch

from foreword.engine.llm import load_model
from foreword.runtime.base import Need
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack


def nats_per_token(model, token_ids: list[int], window: int) -> float:
    cache = model.decoder.new_cache()
    total, count = 0.0, 0
    for start in range(0, len(token_ids) - 1, window):
        part = token_ids[start : start + window]
        if len(part) < 2:
            break
        slot = cache.open(len(part))
        nodes = range(len(part) - 1)
        output = model.decoder.forward(pack([DraftTree.chain(part)], [0], [slot]), cache, Need(logits=nodes))
        logprobs = torch.log_softmax(output.logits.double(), dim=-1)
        total -= float(logprobs[torch.arange(len(part) - 1), torch.tensor(part[1:])].sum())
        count += len(part) - 1
        cache.close(slot)
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", default=None)
    parser.add_argument("--tokens", type=int, default=4096, help="from the middle of each file")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--dtypes", default="int8,float32")
    args = parser.parse_args()
    for dtype in args.dtypes.split(","):
        weights, _, cached = dtype.partition(":")
        model = load_model(args.model, dtype=weights, kv_dtype=cached or "auto")
        for file in args.files:
            text = file.read_text()
            middle = len(text) // 2
            ids = model.tokenizer.encode(text[middle : middle + args.tokens * 8])[: args.tokens]
            perplexity = math.exp(nats_per_token(model, ids, args.window))
            print(
                json.dumps({"file": file.name, "dtype": dtype, "tokens": len(ids), "perplexity": round(perplexity, 4)})
            )


if __name__ == "__main__":
    main()
