"""How the engines are started with what was exported, and which versions were seen to load it."""

import json
import shlex

_VLLM_METHODS = {"eagle3": "eagle3", "eagle": "eagle", "medusa": "medusa", "draft_model": "draft_model"}
_SGLANG_METHODS = {"eagle3": "EAGLE3", "eagle": "EAGLE", "draft_model": "STANDALONE"}
TARGET = "TARGET"  # where the model's Hugging Face name is not known
VERSIONS = {
    "vllm": "loaded by vLLM 0.32 on CPU (V1 runner); Medusa is gone from 0.33 on",
    "sglang": "written after the layout of SGLang 0.5.23; it has no CPU wheel and was not run",
    "llama.cpp": "loaded by llama-cpp-python 0.3.36",
    "speculators": "written after speculators 0.9; vLLM 0.32 loads it like its own",
}


def command(engine: str, method: str, target: str, folder: str, num_tokens: int = 3) -> str:
    """The complete command line, to be pasted into a shell."""
    if engine == "llama.cpp":
        return f"llama-server -m {shlex.quote(target)} -md {shlex.quote(folder)}/draft.gguf --spec-type draft-simple --spec-draft-n-max {num_tokens}"
    if engine == "sglang":
        return (
            f"python -m sglang.launch_server --model-path {shlex.quote(target)} --speculative-algorithm {_SGLANG_METHODS[method]} "
            f"--speculative-draft-model-path {shlex.quote(folder)} --speculative-num-steps {num_tokens} "
            f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {num_tokens + 1}"
        )
    config = {"method": _VLLM_METHODS[method], "model": folder, "num_speculative_tokens": num_tokens}
    return f"vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(json.dumps(config))}"
