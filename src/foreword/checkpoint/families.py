"""The families of models that foreword's decoder computes, one row each: how a family differs from Llama.

A row serves folders of Hugging Face (`model_type`) and GGUF files (`general.architecture`) alike. `docs/guides/add-a-model.md`
adds one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ATTENTION_BIAS = {"attention_bias": {"qkv_bias": True, "o_bias": True}}
_ALL_BIASES = {**_ATTENTION_BIAS, "mlp_bias": {"mlp_bias": True}}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family. The defaults are Llama's.

    Args:
        saved_as: its class in a config.json's "architectures", for models that training writes.
        same_as: the family that it is but for its name; None where it is one of its own.
        in_gguf: whether GGUF has an architecture of this name.
        in_hf: whether Hugging Face has a model type of this name.
        qkv_bias: the query, key and value maps have biases.
        qk_norm: a norm of queries and keys, before the rotary embedding.
        options: switches of config.json, and the fields of `ModelSpec` that each sets; in GGUF they are seen from the tensors.
        spec: what else a model of the family is: fields of `ModelSpec`.
        scalars: the multipliers and caps that it has, by their keys in config.json.
        scales_embedding: rows of the embedding are multiplied by the root of their size.
        inner_size: the key in config.json of the feed-forward block's size.
        default_head_dim: where config.json names none; None for hidden_size / num_heads.
        defaults: of other keys of config.json.
        gguf_defaults: of keys of GGUF, without the architecture.
        windows: which layers have a sliding window: "none", "all", "flag" (with `use_sliding_window`, from
            `max_window_layers` on), or "kinds" (by `layer_types`, or all but every `window_period`-th).
        window_period: see there.
        rope_by_kind: windowed layers have a rotary embedding of their own.
        no_rope: layers without one: "none", "listed" (`no_rope_layers`), "unwindowed", or "optional"
            (all, unless `position_embedding_type` says rope).
        gguf_no_rope_period: the same in GGUF, which has no key: every so many-th layer; 0 for none.
        gguf_wide_scores: numbers of layers of the models whose scores are scaled by hidden_size / num_heads, as GGUF does not
            say.
        gguf_permuted_qk: GGUF stores the rows of q and k for the interleaved rotary layout.
        interleaved_qk: all files do.
        hf_norm_offset: what Hugging Face's files leave out of norm weights.
        hf_names: where tensors have other names than Llama's (`name_map`).
        gguf_names: the same in GGUF.
    """

    saved_as: str
    same_as: str | None = None
    in_gguf: bool = True
    in_hf: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    scalars: tuple[str, ...] = ()
    scales_embedding: bool = False
    inner_size: str = "intermediate_size"
    default_head_dim: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    gguf_defaults: Mapping[str, Any] = field(default_factory=dict)
    windows: str = "none"
    window_period: int = 0
    rope_by_kind: bool = False
    no_rope: str = "none"
    gguf_no_rope_period: int = 0
    gguf_wide_scores: tuple[int, ...] = ()
    gguf_permuted_qk: bool = False
    interleaved_qk: bool = False
    hf_norm_offset: float = 0.0
    hf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_llama_like(self) -> bool:
        """Whether its layers are Llama's, but for biases and norms of queries and keys."""
        return not (self.spec or self.scalars or self.hf_names or self.no_rope != "none")


def _layer_names(prefix: str, **names: str) -> dict[str, str]:
    """Names of a layer's weights: canonical -> in the file."""
    return {f"layers.{{i}}.{own}.weight": f"{prefix}{theirs}.weight" for own, theirs in names.items()}


_HF, _GGUF = "model.layers.{i}.", "blk.{i}."
_FUSED_QKV = _layer_names(_HF, **dict.fromkeys("qkv", "self_attn.qkv_proj"))
_FUSED_GATE_UP = _layer_names(_HF, gate="mlp.gate_up_proj", up="mlp.gate_up_proj")
_GGUF_FUSED_QKV = _layer_names(_GGUF, q="attn_qkv", k="attn_qkv", v="attn_qkv")
_GGUF_FUSED_GATE_UP = _layer_names(_GGUF, gate="ffn_up", up="ffn_up")
_SHARED_MLP = _layer_names(
    _HF, gate="shared_mlp.input_linear", up="shared_mlp.input_linear", down="shared_mlp.output_linear"
)
_GEMMA_NORMS = _layer_names(
    _HF,
    attn_out_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_out_norm="post_feedforward_layernorm",
)
_GLM_NORMS = _layer_names(_HF, attn_out_norm="post_self_attn_layernorm", mlp_out_norm="post_mlp_layernorm")
_OLMO_NORMS = _layer_names(_HF, attn_out_norm="post_attention_layernorm", mlp_out_norm="post_feedforward_layernorm")
_STABLELM_HEADS = _layer_names(_HF, q_norm="self_attn.q_layernorm.norms.{h}", k_norm="self_attn.k_layernorm.norms.{h}")
_STABLELM_OPTIONS = {
    "use_qkv_bias": {"qkv_bias": True},
    "qk_layernorm": {"qk_norm": True},
    "use_parallel_residual": {"norms": "parallel"},
}
_GRANITE_SCALARS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
_GEMMA: dict[str, Any] = {
    "scales_embedding": True,
    "hf_norm_offset": 1.0,
    "hf_names": _GEMMA_NORMS,
    "windows": "kinds",
    "scalars": ("query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping"),
    "options": _ATTENTION_BIAS,
    "default_head_dim": 256,
}
_GEMMA_DEFAULTS = {
    "tie_word_embeddings": True, "sliding_window": 4096, "query_pre_attn_scalar": 256, "num_attention_heads": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
_GEMMA3: dict[str, Any] = {
    **_GEMMA,
    "qk_norm": True,
    "spec": {"norms": "sandwich", "activation": "gelu_tanh"},
    "window_period": 6,
    "rope_by_kind": True,
    "defaults": {
        **_GEMMA_DEFAULTS,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "vocab_size": 262_208,
    },
    "gguf_defaults": {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4},
    "gguf_wide_scores": (62,),
}
_OLMO: dict[str, Any] = {
    "qk_norm": True,
    "spec": {"norms": "post", "qk_norm_over": "all_heads"},
    "hf_names": _OLMO_NORMS,
    "options": _ATTENTION_BIAS,
    "windows": "kinds",
    "window_period": 4,
    "rope_by_kind": True,
}
_MINISTRAL3: dict[str, Any] = {"saved_as": "Ministral3ForCausalLM", "windows": "all", "default_head_dim": 128}

FAMILIES: dict[str, Family] = {
    "llama": Family(saved_as="LlamaForCausalLM", options=_ALL_BIASES, gguf_permuted_qk=True),
    "mistral": Family(
        saved_as="MistralForCausalLM", same_as="llama", in_gguf=False, windows="all", defaults={"sliding_window": 4096}
    ),
    "ministral": Family(
        saved_as="MinistralForCausalLM", same_as="llama", in_gguf=False, windows="kinds",
        defaults={"sliding_window": 4096},
    ),
    "ministral3": Family(**_MINISTRAL3, in_gguf=False),
    "mistral3": Family(**_MINISTRAL3, same_as="ministral3", in_hf=False, gguf_permuted_qk=True),
    "qwen2": Family(saved_as="Qwen2ForCausalLM", qkv_bias=True, windows="flag"),
    "qwen3": Family(saved_as="Qwen3ForCausalLM", qk_norm=True, default_head_dim=128, windows="flag"),
    "granite": Family(
        saved_as="GraniteForCausalLM", options=_ALL_BIASES, scalars=_GRANITE_SCALARS, gguf_permuted_qk=True
    ),
    "granitemoehybrid": Family(
        saved_as="GraniteMoeHybridForCausalLM", same_as="granite", in_gguf=False,
        options=_ATTENTION_BIAS, scalars=_GRANITE_SCALARS, hf_names=_SHARED_MLP, no_rope="optional",
        inner_size="shared_intermediate_size",
    ),
    "smollm3": Family(
        saved_as="SmolLM3ForCausalLM", options=_ALL_BIASES, windows="flag", no_rope="listed", gguf_no_rope_period=4,
        gguf_permuted_qk=True, defaults={"rope_theta": 2e6, "tie_word_embeddings": True},
    ),
    "phi3": Family(
        saved_as="Phi3ForCausalLM", windows="all", hf_names={**_FUSED_QKV, **_FUSED_GATE_UP},
        gguf_names={**_GGUF_FUSED_QKV, **_GGUF_FUSED_GATE_UP},
        defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 4096},
    ),
    "olmo2": Family(saved_as="Olmo2ForCausalLM", **_OLMO, defaults={"rms_norm_eps": 1e-5}),
    "olmo3": Family(
        saved_as="Olmo3ForCausalLM", **_OLMO, in_gguf=False,
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5},
    ),
    "glm4": Family(
        saved_as="Glm4ForCausalLM", options={"attention_bias": {"qkv_bias": True}}, spec={"norms": "sandwich"},
        interleaved_qk=True, hf_names={**_GLM_NORMS, **_FUSED_GATE_UP}, gguf_names=_GGUF_FUSED_GATE_UP,
        default_head_dim=128, defaults={"partial_rotary_factor": 0.5, "attention_bias": True, "rms_norm_eps": 1.5625e-7},
    ),
    "stablelm": Family(
        saved_as="StableLmForCausalLM", options=_STABLELM_OPTIONS,
        spec={"norm_kind": "layer", "norm_bias": True, "qk_norm_over": "each_head"}, hf_names=_STABLELM_HEADS,
        defaults={"partial_rotary_factor": 0.25},
    ),
    "cohere2": Family(
        saved_as="Cohere2ForCausalLM", options=_ATTENTION_BIAS,
        spec={"norm_kind": "layer", "norms": "parallel"}, scalars=("logit_scale",), windows="kinds", window_period=4,
        no_rope="unwindowed", interleaved_qk=True,
        defaults={"tie_word_embeddings": True, "sliding_window": 4096, "logit_scale": 0.0625},
    ),
    "gemma2": Family(
        saved_as="Gemma2ForCausalLM", **_GEMMA, spec={"norms": "sandwich", "activation": "gelu_tanh"}, window_period=2,
        gguf_wide_scores=(46,),
        defaults={**_GEMMA_DEFAULTS, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    ),
    "gemma3": Family(saved_as="Gemma3ForCausalLM", **_GEMMA3),
    "gemma3_text": Family(saved_as="Gemma3ForCausalLM", same_as="gemma3", in_gguf=False, **_GEMMA3),
}  # fmt: skip


def gguf_names() -> list[str]:
    """Architectures of GGUF files that are read."""
    return [name for name, family in FAMILIES.items() if family.in_gguf]


def hf_names() -> list[str]:
    """Model types of Hugging Face folders that are read."""
    return [name for name, family in FAMILIES.items() if family.in_hf]
