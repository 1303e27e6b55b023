"""Small random models of every family, and the same models as transformers builds them."""

import hashlib
import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from foreword.config import Llama3RopeScaling, ModelSpec, RopeSpec

FAMILIES = ("llama", "qwen2", "qwen3")

_SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_layers": 3,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 8,
    "vocab_size": 97,
    "context_len": 512,
    "norm_eps": 1e-5,
    "rope": RopeSpec(theta=10_000.0),
    "tied_head": True,
}
_FAMILY_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 16, "tied_head": False},  # head_dim is not hidden_size / num_heads
}

LLAMA3_ROPE = RopeSpec(
    theta=10_000.0,
    llama3=Llama3RopeScaling(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=64),
)


def tiny_spec(family: str = "llama", **overrides: Any) -> ModelSpec:
    """A model of a few thousand weights: grouped query attention, and what is special about its family."""
    return ModelSpec(family=family, **{**_SIZES, **_FAMILY_OPTIONS[family], **overrides})


class TinyWeights:
    """`WeightSource` of random weights, float32.

    Matrices keep the size of what passes through them and the head's rows have norm `logit_scale`, so that logits
    spread over a few units: neither flat nor one-hot. Norms and biases are random too, so that leaving one out shows.
    """

    def __init__(self, spec: ModelSpec, seed: int = 0, logit_scale: float = 2.0) -> None:
        self.spec = spec
        self._logit_scale = logit_scale
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {name: self._random(name, shape, generator) for name, shape in tensor_shapes(spec).items()}
        key = repr((asdict(spec), seed, logit_scale))
        self._fingerprint = hashlib.sha256(key.encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def has_tensor(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def _random(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            return 1.0 + 0.2 * noise
        if name.endswith("bias"):
            return 0.5 * noise
        if name in ("embed.weight", "head.weight"):
            return noise * self._logit_scale / math.sqrt(shape[1])
        return noise / math.sqrt(shape[1])


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor of a model, by the names of runtime/base.py."""
    hidden, q_width, kv_width = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, hidden), "norm.weight": (hidden,)}
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocab_size, hidden)
    for i in range(spec.num_layers):
        layer = {
            "attn_norm.weight": (hidden,),
            "mlp_norm.weight": (hidden,),
            "q.weight": (q_width, hidden),
            "k.weight": (kv_width, hidden),
            "v.weight": (kv_width, hidden),
            "o.weight": (hidden, q_width),
            "gate.weight": (spec.intermediate_size, hidden),
            "up.weight": (spec.intermediate_size, hidden),
            "down.weight": (hidden, spec.intermediate_size),
        }
        if spec.qkv_bias:
            layer |= {"q.bias": (q_width,), "k.bias": (kv_width,), "v.bias": (kv_width,)}
        if spec.qk_norm:
            layer |= {"q_norm.weight": (spec.head_dim,), "k_norm.weight": (spec.head_dim,)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def hf_name(name: str) -> str:
    """Transformers' name of a tensor."""
    if name in ("embed.weight", "norm.weight", "head.weight"):
        return {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}[
            name.partition(".")[0]
        ] + ".weight"
    _, index, rest = name.split(".", 2)
    part, _, kind = rest.partition(".")
    block = {
        "attn_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    }.get(part, f"self_attn.{part}_proj")
    return f"model.layers.{index}.{block}.{kind}"


def rope_parameters(spec: ModelSpec) -> dict[str, Any]:
    """How transformers 5 spells a rotary embedding."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.rope.theta}
    if spec.rope.linear_factor != 1.0:
        rope |= {"rope_type": "linear", "factor": spec.rope.linear_factor}
    if spec.rope.llama3 is not None:
        scaling = asdict(spec.rope.llama3)
        rope |= {
            "rope_type": "llama3",
            "original_max_position_embeddings": scaling.pop("original_context_len"),
            **scaling,
        }
    return rope


def hf_config(spec: ModelSpec) -> Any:
    """The transformers config of a spec."""
    import transformers

    config_class = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }[spec.family]
    return config_class(
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.context_len,
        rms_norm_eps=spec.norm_eps,
        rope_parameters=rope_parameters(spec),
        tie_word_embeddings=spec.tied_head,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def hf_model(weights: TinyWeights) -> Any:
    """The same model as transformers builds it, float32, ready to run."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(hf_config(weights.spec), attn_implementation="eager")
    state = {hf_name(name): tensor for name, tensor in weights.tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, f"transformers does not know {unexpected}"
    assert all(weights.spec.tied_head and name == "lm_head.weight" for name in missing), f"missing {missing}"
    return model.float().eval()
