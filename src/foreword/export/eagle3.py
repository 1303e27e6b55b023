"""EAGLE-3 for vLLM and SGLang ("HF-EAGLE": one file for both) and in the speculators format.

Layer ids are the trap. Top-level ids count the layers that were run, as Hugging Face's `hidden_states`; vLLM and llama.cpp
read those. SGLang reads the nested ones and adds 1. A wrong one loads silently and is accepted more seldom.
"""

from typing import Any

from foreword.errors import ConfigError
from foreword.export.layout import Layout
from foreword.export.source import DrafterSource

_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def taps_of(source: DrafterSource) -> list[int]:
    """The target's layers that it reads, as Hugging Face numbers `hidden_states`."""
    nested = source.config.get("eagle_config") or {}
    key = "eagle_aux_hidden_state_layer_ids"
    num_layers = source.target.spec.num_layers
    taps = source.config.get(key) or nested.get(key) or (2, num_layers // 2, num_layers - 3)
    return [int(tap) for tap in taps]


def _checked(source: DrafterSource, engine: str) -> list[int]:
    """The taps; `ConfigError` for what the engine cannot hold, before anything is written."""
    taps = taps_of(source)
    if taps != sorted(set(taps)):
        raise ConfigError(f"the drafter reads layers {taps}; {engine} sorts them, so they must be ascending and unique")
    if source.config.get("num_hidden_layers", 1) != 1:
        raise ConfigError(f"the drafter has {source.config['num_hidden_layers']} layers; engines agree on one alone")
    if "fc.bias" in source.tensors:
        raise ConfigError(f"the drafter's fc has a bias, which {engine} does not read; train it without")
    if source.config.get("norm_before_residual") and engine == "sglang":
        raise ConfigError("SGLang has no norm_before_residual; train it without, or export for vllm")
    if source.is_reduced and "lm_head.weight" not in source.tensors:
        raise ConfigError("the drafter borrows rows of the target's head, which no engine does; train it with its own")
    return taps


def hf_layout(source: DrafterSource, engine: str) -> Layout:
    """For vLLM, SGLang and llama.cpp's converter."""
    taps, spec = _checked(source, engine), source.target.spec
    rows = len(source.draft_ids) if source.draft_ids is not None else spec.vocab_size
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **source.sizes(),
        **{flag: bool(source.config.get(flag, False)) for flag in _FLAGS},
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": spec.context_len,
        "vocab_size": spec.vocab_size,
        "draft_vocab_size": rows,
        "target_hidden_size": spec.hidden_size,
        "tie_word_embeddings": False,
        "torch_dtype": source.config.get("torch_dtype", "bfloat16"),
        "num_aux_hidden_states": len(taps),
        "eagle_aux_hidden_state_layer_ids": taps,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in taps],
        },
    }
    return Layout(engine, "eagle3", config, dict(source.tensors))


def speculators_layout(source: DrafterSource, engine: str) -> Layout:
    """The format of the library speculators, 0.9."""
    taps, spec = _checked(source, engine), source.target.spec
    rows = len(source.draft_ids) if source.draft_ids is not None else spec.vocab_size
    layer = {
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        **source.sizes(),
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": spec.context_len,
        "tie_word_embeddings": False,
        "num_aux_hidden_states": len(taps),
    }
    config: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
            ],
            "verifier": {"name_or_path": source.target.source, "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": rows,
        "target_hidden_size": None,
        **{flag: bool(source.config.get(flag, False)) for flag in _FLAGS},
        "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": taps,
        "tie_word_embeddings": False,
        "torch_dtype": source.config.get("torch_dtype", "bfloat16"),
    }
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in source.tensors.items()}
    if "embed_tokens.weight" not in tensors:
        tensors["embed_tokens.weight"] = source.target.tensor("embed.weight").bfloat16()
    return Layout(engine, "eagle3", config, tensors)
