"""Small random models of many architectures, as transformers builds them: nothing is downloaded."""

import math
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from tests.support.toy_llm import END, byte_tokenizer

WINDOW = 16
CONTEXT_LEN = 128
VOCAB_SIZE = byte_tokenizer(" the").vocab_size

_NO_ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT_LEN, **_NO_ENDS,
}  # fmt: skip
_GATED: dict[str, Any] = {**_SIZES, "intermediate_size": 48, "num_key_value_heads": 2}
_GPT: dict[str, Any] = {
    "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": VOCAB_SIZE, "n_positions": CONTEXT_LEN, **_NO_ENDS,
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_GEMMA3_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

ACCEPTED: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**_GATED),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**_SIZES, intermediate_size=48),
    "gpt2": lambda: hf.GPT2Config(**_GPT),
    "opt": lambda: hf.OPTConfig(**{**_SIZES, "pad_token_id": 1}, ffn_dim=48, word_embed_proj_dim=32),
    "gemma2": lambda: hf.Gemma2Config(**_GATED, head_dim=8, sliding_window=WINDOW),  # windowed every other layer
    "gemma3": lambda: hf.Gemma3TextConfig(**_GATED, head_dim=8, sliding_window=WINDOW, layer_types=_GEMMA3_LAYERS),
    "phi3": lambda: hf.Phi3Config(**_GATED),
    "mistral": lambda: hf.MistralConfig(**_GATED, sliding_window=WINDOW),  # every layer windowed, one mask for all
    "falcon": lambda: hf.FalconConfig(**_SIZES, alibi=False),
    "mixtral": lambda: hf.MixtralConfig(**_GATED, num_local_experts=4),
}
WINDOWED = ("gemma2", "gemma3", "mistral")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "falcon_alibi": (lambda: hf.FalconConfig(**_SIZES, alibi=True), "alibi"),
    "bloom": (lambda: hf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=VOCAB_SIZE), "no position_ids"),
    "gpt_neo": (
        lambda: hf.GPTNeoConfig(
            hidden_size=32, num_layers=2, num_heads=4, vocab_size=VOCAB_SIZE, attention_types=[[["global", "local"], 1]],
            window_size=8, **_NO_ENDS,
        ),
        "window_size = 8",
    ),
    "mamba": (lambda: hf.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB_SIZE), "recurrent state"),
    "bamba": (
        lambda: hf.BambaConfig(**_GATED, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8),
        "recurrent state",
    ),
    "lfm2": (
        lambda: hf.Lfm2Config(**_GATED, layer_types=["conv", "full_attention", "conv"]),
        "LinearAttentionLayer beside keys and values|recurrent state",
    ),
    "bert": (lambda: hf.BertConfig(**_GATED), "tokens that follow"),
}  # fmt: skip


def random_model(config: Any, seed: int = 0, **options: Any) -> Any:
    """A model whose logits spread over a few units, so that context matters and ties are rare."""
    model = hf.AutoModelForCausalLM.from_config(config, **options).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter.add_(0.1 * noise)
                continue
            is_table = any(part in name for part in ("emb", "head", "wte"))
            parameter.copy_(noise * (2.0 if is_table else 1.0) / math.sqrt(parameter.shape[-1]))
    return model.eval()


def fast_tokenizer(**options: Any) -> Any:
    """A tokenizer of transformers with an end token, as users have one."""
    return hf.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(" the").backend, eos_token=END, **options)
