"""Speed of the torch runtime on a CPU: plain decoding against transformers, cost by width, draws, a step's overhead.

    python benchmarks/torch_runtime.py [--dtype bfloat16] [--threads 2] [--repeats 7] [--json FILE]

Both sides hold the same weights in the same dtype and read the same prompt ids; runs are interleaved and medians
reported, with the fastest run beside them (on a busy machine it is the steadier of the two). Milliseconds a token count
the tokens after the first, on both sides.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from foreword.checkpoint.name_map import HF_NAMES, expected_shapes, file_name
from foreword.checkpoint.opened import Checkpoint, open_checkpoint
from foreword.config import ModelSpec
from foreword.engine.llm import LLM, load_model
from foreword.runtime.base import Need
from foreword.sampling.noise import Stream, row_key
from foreword.sampling.params import SamplingParams, Warp
from foreword.sampling.warp import draw
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack

WIDTHS = (1, 2, 4, 8, 16, 32)
NUM_NODES = 8
PROMPT = "The history of the city begins with a small village near the river, where people traded salt and wool for"
WARPS = {
    "greedy": Warp(),
    "temperature 0.8": Warp(0.8),
    "temperature 0.8, top_p 0.95": Warp(0.8, top_p=0.95),
    "temperature 0.8, top_k 50": Warp(0.8, top_k=50),
    "temperature 0.8, min_p 0.05": Warp(0.8, min_p=0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="a Llama-like model; the default model if not given")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--json", type=Path, default=None, help="write the figures here as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(args.model, runtime="torch", dtype=args.dtype, device="cpu", threads=args.threads)
    theirs = transformers_model(open_checkpoint(args.model), args.dtype)
    llm = LLM(model, "none", batch_size=1, prefix_cache=False)
    target = Target(model.decoder)
    prompt_ids = llm.encode(PROMPT)
    figures = {
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "machine": platform.machine(),
        },
        "model": model.checkpoint.source,
        "dtype": args.dtype,
        "threads": args.threads,
        "decoding": compare_decoding(llm, theirs, prompt_ids, args.tokens, args.repeats),
        "pass_ms": pass_costs(target, prompt_ids, args.repeats),
        "draw_ms": draw_costs(target, prompt_ids, args.repeats),
        "step_overhead_ms": step_overhead(model, prompt_ids, args.tokens, args.repeats),
    }
    show(figures)
    text = json.dumps(figures, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")


def transformers_model(checkpoint: Checkpoint, dtype: str):
    """The same weights in transformers' own class."""
    weights, spec = checkpoint.as_dtype(dtype), checkpoint.spec
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(llama_config(spec))
    state = {file_name(HF_NAMES, n): weights.tensor(n).to(getattr(torch, dtype)) for n in expected_shapes(spec)}
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # its buffer is not among the weights
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return model.eval()


def llama_config(spec: ModelSpec) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.context_len,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope.theta},
        tie_word_embeddings=spec.tied_head,
    )


def compare_decoding(llm: LLM, theirs, prompt_ids: list[int], num_tokens: int, repeats: int) -> dict:
    """Milliseconds a token of both, run in turn."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    inputs = torch.tensor([prompt_ids])

    def ours_ms() -> tuple[float, list[int]]:
        (result,) = llm.generate(prompt_ids, params)
        return result.stats.decode_s / (num_tokens - 1) * 1e3, list(result.token_ids)

    def theirs_ms() -> tuple[float, list[int]]:
        times, token_ids = [], []
        for length in (1, num_tokens):
            start_s = time.perf_counter()
            output = theirs.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=length)
            times.append(time.perf_counter() - start_s)
            token_ids = output[0, len(prompt_ids) :].tolist()
        return (times[1] - times[0]) / (num_tokens - 1) * 1e3, token_ids

    ours_ms(), theirs_ms()
    ours, other = zip(*[(ours_ms(), theirs_ms()) for _ in range(repeats)], strict=True)
    own_ids, other_ids = ours[0][1], other[0][1]
    same = next((i for i, (a, b) in enumerate(zip(own_ids, other_ids, strict=False)) if a != b), len(own_ids))
    return {
        "foreword_ms_per_token": spread([ms for ms, _ in ours]),
        "transformers_ms_per_token": spread([ms for ms, _ in other]),
        "speedup": round(statistics.median(b / a for (a, _), (b, _) in zip(ours, other, strict=True)), 2),
        "same_leading_tokens": f"{same} of {num_tokens}",
    }


def pass_costs(target, prompt_ids: list[int], repeats: int) -> dict[int, dict]:
    """A pass of n nodes with all logits."""
    with Filled(target, prompt_ids) as slot:
        kv_len = target.cache.length(slot)
        batches = {n: pack([DraftTree.chain(prompt_ids[:1] * n)], [kv_len], [slot]) for n in WIDTHS}
        calls = {n: lambda b=b: target.forward(b, Need(logits=range(b.num_nodes))) for n, b in batches.items()}
        return interleaved_ms(calls, 3 * repeats)


def draw_costs(target, prompt_ids: list[int], repeats: int) -> dict[str, dict]:
    """Drawing 8 tokens from logits that are there."""
    with Filled(target, prompt_ids[:-NUM_NODES]) as slot:
        kv_len = target.cache.length(slot)
        batch = pack([DraftTree.chain(prompt_ids[-NUM_NODES:])], [kv_len], [slot])
        logits = target.forward(batch, Need(logits=range(NUM_NODES))).logits.clone()
    keys = [row_key(1, 0, Stream.TARGET, position) for position in range(NUM_NODES)]
    calls = {
        name: lambda warp=warp: [draw(row, warp, key) for row, key in zip(logits, keys, strict=True)]
        for name, warp in WARPS.items()
    }
    return interleaved_ms(calls, 10 * repeats)


def step_overhead(model, prompt_ids: list[int], num_tokens: int, repeats: int) -> dict:
    """What an engine step takes beside the target's pass and its draws, with `ngram` and 8 nodes per step."""
    llm = LLM(model, "ngram", num_speculative_tokens=NUM_NODES - 1, batch_size=1, prefix_cache=False)
    repetitive = prompt_ids * 4
    overheads = []
    for _ in range(repeats):
        before = (llm.engine.stats.num_steps, llm.engine.stats.total_s, llm.engine.stats.target_s)
        llm.generate(repetitive, SamplingParams(max_tokens=num_tokens, ignore_eos=True))
        after = (llm.engine.stats.num_steps, llm.engine.stats.total_s, llm.engine.stats.target_s)
        steps, total_s, target_s = (b - a for a, b in zip(before, after, strict=True))
        overheads.append((total_s - target_s) / steps * 1e3)
    return spread(overheads)


class Filled:
    """A slot of the target's cache that has read some tokens."""

    def __init__(self, target, token_ids: list[int]) -> None:
        self.target = target
        self.slot = target.cache.open(len(token_ids) + max(WIDTHS))
        target.forward(pack([DraftTree.chain(token_ids)], [0], [self.slot]), Need())
        target.commit(self.slot, range(len(token_ids)))

    def __enter__(self) -> int:
        return self.slot

    def __exit__(self, *exception: object) -> None:
        self.target.cache.close(self.slot)


def interleaved_ms(calls: dict, repeats: int) -> dict:
    """Time of each call, in turn."""
    times: dict = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(timed_ms(call))
    return {name: spread(values) for name, values in times.items()}


def timed_ms(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return (time.perf_counter() - start_s) * 1e3


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3)}


def show(figures: dict) -> None:
    """The figures as a table."""
    decoding = figures["decoding"]
    rows = [
        ("plain decoding, ms/token", decoding["foreword_ms_per_token"]),
        ("transformers generate, ms/token", decoding["transformers_ms_per_token"]),
        *((f"pass of {n} nodes, ms", figure) for n, figure in figures["pass_ms"].items()),
        *((f"{NUM_NODES} draws, {name}, ms", figure) for name, figure in figures["draw_ms"].items()),
        ("step beside the pass, ms", figures["step_overhead_ms"]),
    ]
    print(f"{figures['model']}, {figures['dtype']}, {figures['threads']} threads{'':24}median      min")
    for name, figure in rows:
        print(f"{name:48}{figure['median']:12.3f}{figure['min']:9.3f}")
    print(f"speed-up over transformers: {decoding['speedup']}; same tokens: {decoding['same_leading_tokens']}\n")


if __name__ == "__main__":
    main()
