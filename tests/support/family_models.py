"""Tiny random models of every family, made and saved by transformers.

Weights are drawn wide, and every vector is moved off its first value: with those that transformers draws, most features
of an architecture can be left out without a trace in the logits.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers as hf

VOCAB_SIZE, WINDOW, ORIGINAL = 128, 6, 16
_ENDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False,
    **_ENDS,
}  # fmt: skip
# Heads of another size than hidden_size / num_heads, where a family can have them.
_WIDE: dict[str, Any] = {**_SIZES, "head_dim": 32}
_YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
    "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
_PLAIN = {"rope_type": "default", "rope_theta": 1e4}
_LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5], "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 9.0],
    "original_max_position_embeddings": 64,
}  # fmt: skip
_KINDS = ["sliding_attention", "full_attention"] * 2
_BY_KIND = {
    "sliding_attention": _PLAIN,
    "full_attention": {**_PLAIN, "rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 2.5,
}  # fmt: skip

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama_biases": lambda: hf.LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "llama_yarn": lambda: hf.LlamaConfig(**_SIZES, rope_parameters=_YARN),
    "qwen3_yarn": lambda: hf.Qwen3Config(**_WIDE, rope_parameters={**_YARN, "truncate": False, "attention_factor": 1.2}),
    "qwen2_window": lambda: hf.Qwen2Config(
        **_SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
    "mistral": lambda: hf.MistralConfig(**_WIDE, sliding_window=WINDOW),
    "ministral": lambda: hf.MinistralConfig(**_WIDE, sliding_window=WINDOW, layer_types=_KINDS),
    "ministral3": lambda: hf.Ministral3Config(
        **_WIDE, rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}
    ),
    "granite": lambda: hf.GraniteConfig(**_SIZES, **_GRANITE),
    "granite4": lambda: hf.GraniteMoeHybridConfig(
        **_SIZES, **_GRANITE, shared_intermediate_size=80, num_local_experts=0, layer_types=["attention"] * 4,
        position_embedding_type="rope",
    ),
    "granite4_nope": lambda: hf.GraniteMoeHybridConfig(
        **_SIZES, **_GRANITE, shared_intermediate_size=80, num_local_experts=0, layer_types=["attention"] * 4,
    ),
    "smollm3": lambda: hf.SmolLM3Config(**_SIZES, no_rope_layer_interval=2),
    "phi3": lambda: hf.Phi3Config(**_SIZES, sliding_window=WINDOW),
    "phi3_long": lambda: hf.Phi3Config(
        **_SIZES, original_max_position_embeddings=64, rope_parameters=_LONG, partial_rotary_factor=0.75
    ),
    "olmo2": lambda: hf.Olmo2Config(**_SIZES),
    "olmo3": lambda: hf.Olmo3Config(
        **_SIZES, sliding_window=WINDOW, layer_types=_KINDS,
        rope_parameters={"full_attention": _YARN, "sliding_attention": _PLAIN},
    ),
    "glm4": lambda: hf.Glm4Config(**_WIDE, rope_parameters={**_PLAIN, "partial_rotary_factor": 0.5}),
    "stablelm": lambda: hf.StableLmConfig(
        **_SIZES, use_qkv_bias=True, qk_layernorm=True, rope_parameters={**_PLAIN, "partial_rotary_factor": 0.25}
    ),
    "stablelm_parallel": lambda: hf.StableLmConfig(
        **_SIZES, use_parallel_residual=True, rope_parameters={**_PLAIN, "partial_rotary_factor": 0.5}
    ),
    "cohere2": lambda: hf.Cohere2Config(
        **{**_SIZES, "tie_word_embeddings": True}, sliding_window=WINDOW, layer_types=_KINDS, logit_scale=0.25
    ),
    "gemma2": lambda: hf.Gemma2Config(
        **{**_WIDE, "tie_word_embeddings": True}, sliding_window=WINDOW, query_pre_attn_scalar=20,
        attn_logit_softcapping=2.0, final_logit_softcapping=1.5,
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **{**_WIDE, "tie_word_embeddings": True}, sliding_window=WINDOW, layer_types=_KINDS, query_pre_attn_scalar=20,
        rope_parameters=_BY_KIND,
    ),
}  # fmt: skip
WINDOWED = tuple(name for name in CONFIGS if name in (
    "qwen2_window", "mistral", "ministral", "phi3", "olmo3", "cohere2", "gemma2", "gemma3"
))  # fmt: skip


def randomised(model: Any, seed: int = 0) -> Any:
    """The model with matrices of a spread that makes attention decide, and no vector at its first value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(noise * (1.5 * parameter.shape[-1] ** -0.5))
    return model.float().eval()


@cache
def family_model(name: str) -> Any:
    """The model of this name in `CONFIGS`, as transformers runs it."""
    return made_model(name)


def made_model(name: str, **changes: Any) -> Any:
    """The same with other values in its configuration."""
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    return randomised(hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager"))


def save_family(name: str, folder: Path) -> Path:
    """Its folder, without a tokenizer."""
    if not (folder / "config.json").is_file():
        family_model(name).save_pretrained(folder)
    return folder


def logits_of(model: Any, token_ids: list[int]) -> torch.Tensor:
    """Of every token of a text, by transformers (tokens, vocabulary)."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].float()


def distance(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a part of the spread of its row."""
    spread = expected.amax(-1) - expected.amin(-1)
    return float(((logits - expected).abs().amax(-1) / spread).max())
