"""The families of models that foreword's decoder computes, one row each: how a family differs from Llama.

A row serves folders of Hugging Face (`model_type`) and GGUF files (`general.architecture`) alike. `docs/guides/add-a-model.md`
adds one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family. The defaults are Llama's.

    Args:
        saved_as: its class in a config.json's "architectures", for models that training writes.
        same_as: the family that it is but for its name; None where it is one of its own.
        in_gguf: whether GGUF has an architecture of this name.
        qkv_bias: the query, key and value maps have biases.
        qk_norm: an RMSNorm over each head of queries and keys, before the rotary embedding.
        default_head_dim: where config.json names none; None for hidden_size / num_heads.
        window_needs_flag: `sliding_window` counts only where `use_sliding_window` is true.
        gguf_permuted_qk: GGUF stores the rows of q and k for the interleaved rotary layout.
    """

    saved_as: str
    same_as: str | None = None
    in_gguf: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    default_head_dim: int | None = None
    window_needs_flag: bool = False
    gguf_permuted_qk: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(saved_as="LlamaForCausalLM", gguf_permuted_qk=True),
    "mistral": Family(saved_as="MistralForCausalLM", same_as="llama", in_gguf=False),
    "qwen2": Family(saved_as="Qwen2ForCausalLM", qkv_bias=True, window_needs_flag=True),
    "qwen3": Family(saved_as="Qwen3ForCausalLM", qk_norm=True, default_head_dim=128, window_needs_flag=True),
}


def gguf_names() -> list[str]:
    """Architectures of GGUF files that are read."""
    return [name for name, family in FAMILIES.items() if family.in_gguf]
