"""What known architectures have that foreword's decoder does not compute, in words for refusals and `foreword inspect`.

Names are model types of Hugging Face and architectures of GGUF alike.
"""

_EXPERTS = "a mixture of experts"
_RECURRENT = "recurrent layers (gated delta net)"
_MAMBA = "recurrent layers (Mamba-2)"
_LATENT = "latent attention (MLA)"
_UNEVEN = "heads of two sizes, keys and values shared between layers, embeddings for each layer"
_SINKS = "attention sinks"
_CONVOLUTION = "short convolutions"

_NEEDS: dict[tuple[str, ...], tuple[str, ...]] = {
    (_EXPERTS,): (
        "mixtral", "qwen2_moe", "qwen2moe", "qwen3_moe", "qwen3moe", "glm4_moe", "glm4moe", "granitemoe", "olmoe", "phimoe", "cohere2_moe",
    ),
    (_EXPERTS, _SINKS): ("gpt_oss", "gpt-oss"),
    (_UNEVEN,): ("gemma4", "gemma4_text", "gemma4_unified", "gemma3n", "gemma3n_text"),
    (_RECURRENT,): ("qwen3_5", "qwen3_5_text", "qwen35"),
    (_RECURRENT, _EXPERTS): ("qwen3_5_moe", "qwen3_5_moe_text", "qwen35moe", "qwen3_next", "qwen3next"),
    (_MAMBA,): ("mamba2", "granitehybrid"),
    (_MAMBA, _EXPERTS): ("nemotron_h", "nemotron_h_moe", "jamba"),
    (_LATENT, _EXPERTS): ("deepseek_v2", "deepseek_v3", "deepseek2", "glm4_moe_lite", "mistral4"),
    (_CONVOLUTION,): ("lfm2",),
    (_CONVOLUTION, _EXPERTS): ("lfm2_moe", "lfm2moe"),
}  # fmt: skip


def what_it_needs(name: str) -> str:
    """For a known architecture ": it needs a mixture of experts" or the like, an empty text for others."""
    for needs, names in _NEEDS.items():
        if name in names:
            return f": it needs {' and '.join(needs)}"
    return ""
