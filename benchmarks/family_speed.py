"""Decoding speed of families beside Llama: random models of about 100 million parameters, native against transformers' `generate`.

    python benchmarks/family_speed.py [--families gemma3,granite] [--threads 2] [--repeats 5] [--tokens 48] [--context 700]

Both sides read the same prompt ids; transformers runs in float32, or in `--dtype bfloat16` where the processor has it.
Runs are interleaved; medians are reported, and the fastest run beside them, which is the steadier of the two on a busy
machine. Then a pass of eight nodes against a pass of one, with the prompt behind them, beside a Llama of the same sizes:
windows and norms must not make a tree dearer.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers as hf

from foreword.engine.llm import LLM, load_model
from foreword.runtime.base import Need
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack

VOCAB_SIZE, WINDOW = 32_768, 512
_ENDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "max_position_embeddings": 4096, "tie_word_embeddings": True, **_ENDS,
}  # fmt: skip
# The sizes of Gemma 3 270M but for its vocabulary, and those of a small Granite.
_WIDE_HEADS: dict[str, Any] = {
    **_SHARED, "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256,
}  # fmt: skip
_NARROW_HEADS: dict[str, Any] = {
    **_SHARED, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 4,
}  # fmt: skip
_KINDS = (["sliding_attention"] * 5 + ["full_attention"]) * 3
CONFIGS = {
    "gemma3": lambda: (
        hf.Gemma3TextConfig(**_WIDE_HEADS, sliding_window=WINDOW, layer_types=_KINDS),
        hf.LlamaConfig(**_WIDE_HEADS),
    ),
    "gemma2": lambda: (
        hf.Gemma2Config(**_WIDE_HEADS, sliding_window=WINDOW, layer_types=_KINDS), hf.LlamaConfig(**_WIDE_HEADS),
    ),
    "granite": lambda: (
        hf.GraniteConfig(
            **_NARROW_HEADS, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.015,
            logits_scaling=8.0,
        ),
        hf.LlamaConfig(**_NARROW_HEADS),
    ),
    "olmo2": lambda: (hf.Olmo2Config(**_NARROW_HEADS), hf.LlamaConfig(**_NARROW_HEADS)),
    "cohere2": lambda: (
        hf.Cohere2Config(**_NARROW_HEADS, sliding_window=WINDOW), hf.LlamaConfig(**_NARROW_HEADS),
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default="gemma3,granite", help=f"of {','.join(CONFIGS)}")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of transformers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--context", type=int, default=700, help="tokens of the prompt")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for family in args.families.split(","):
        print(json.dumps({"family": family, **measured(family, args)}))


def measured(family: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one family."""
    config, llama = CONFIGS[family]()
    prompt_ids = torch.randint(3, VOCAB_SIZE, (args.context,), generator=torch.Generator().manual_seed(1)).tolist()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs, own = made(config, folder / family, args.threads)
        theirs = theirs.to(getattr(torch, args.dtype))
        _, plain = made(llama, folder / "llama", args.threads)
        ms = decoding(LLM(own, "none", batch_size=1, prefix_cache=False), theirs, prompt_ids, args)
        passes = pass_costs({"own": Target(own.decoder), "llama": Target(plain.decoder)}, prompt_ids, 6 * args.repeats)
    return {
        "parameters": sum(parameter.numel() for parameter in theirs.parameters()),
        "ms per token": ms,
        "times transformers": {
            which: round(ms["transformers"][which] / ms["native"][which], 2) for which in ("median", "fastest")
        },
        "pass of 8 / of 1": {name: round(times[8] / times[1], 2) for name, times in passes.items()},
        "pass ms": passes,
    }


def made(config: Any, folder: Path, threads: int) -> tuple[Any, Any]:
    """A random model as transformers runs it, and as foreword does."""
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config).float().eval()
    model.generation_config = hf.GenerationConfig(do_sample=False, pad_token_id=0)
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCAB_SIZE)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return model, load_model(folder, runtime="native", threads=threads, cache_dir=folder / "cache")


def decoding(llm: LLM, theirs: Any, prompt_ids: list[int], args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds a token after the first of each side, run in turn."""
    params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
    inputs = torch.tensor([prompt_ids])

    def ours() -> float:
        (result,) = llm.generate([prompt_ids], params)
        return result.stats.decode_s / (args.tokens - 1) * 1e3

    def generate() -> float:
        times = []
        for length in (1, args.tokens):
            start_s = time.perf_counter()
            theirs.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=length, min_new_tokens=length
            )
            times.append(time.perf_counter() - start_s)
        return (times[1] - times[0]) / (args.tokens - 1) * 1e3

    sides = {"native": ours, "transformers": generate}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(args.repeats + 1):
        for name, side in sides.items():
            ms = side()
            if repeat > 0:  # the first warms up
                times[name].append(ms)
    return {
        name: {"median": round(statistics.median(values), 2), "fastest": round(min(values), 2)}
        for name, values in times.items()
    }


def pass_costs(targets: dict[str, Target], prompt_ids: list[int], repeats: int) -> dict[str, dict[int, float]]:
    """Least milliseconds of a pass of one and of eight nodes with their logits, in turn."""
    calls = {}
    for name, target in targets.items():
        slot = target.cache.open(len(prompt_ids) + 16)
        target.forward(pack([DraftTree.chain(prompt_ids)], [0], [slot]), Need())
        target.commit(slot, range(len(prompt_ids)))
        for n in (1, 8):
            calls[name, n] = (target, pack([DraftTree.chain(prompt_ids[:n])], [len(prompt_ids)], [slot]), n)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    for _ in range(repeats):
        for key, (target, batch, n) in calls.items():
            start_s = time.perf_counter()
            target.forward(batch, Need(logits=range(n)))
            times[key].append((time.perf_counter() - start_s) * 1e3)
    return {name: {n: round(min(times[name, n]), 2) for n in (1, 8)} for name in targets}


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    main()
