"""Names and shapes of parameters, as data.

Inside foreword a tensor has one name, whatever file it came from (`runtime/base.py` lists them). The tables here say
what Hugging Face and GGUF call it in most families; `families` says where one differs. Several tensors that have one name
in the file lie there one below the other; "{h}" in it stands for a head, each head's rows then being a tensor of the file.
`expected_shapes` says which tensors a model of a given spec must have.
"""

import re
from collections.abc import Mapping

from foreword.config import ModelSpec, qk_norm_shape

# canonical name -> name in the file; "{i}" is the layer's number
HF_NAMES: Mapping[str, str] = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "norm.bias": "model.norm.bias",
    "head.weight": "lm_head.weight",
    "layers.{i}.attn_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.attn_norm.bias": "model.layers.{i}.input_layernorm.bias",
    "layers.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.mlp_norm.bias": "model.layers.{i}.post_attention_layernorm.bias",
    "layers.{i}.q.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.q.bias": "model.layers.{i}.self_attn.q_proj.bias",
    "layers.{i}.k.bias": "model.layers.{i}.self_attn.k_proj.bias",
    "layers.{i}.v.bias": "model.layers.{i}.self_attn.v_proj.bias",
    "layers.{i}.o.bias": "model.layers.{i}.self_attn.o_proj.bias",
    "layers.{i}.q_norm.weight": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.k_norm.weight": "model.layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up.weight": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down.weight": "model.layers.{i}.mlp.down_proj.weight",
    "layers.{i}.gate.bias": "model.layers.{i}.mlp.gate_proj.bias",
    "layers.{i}.up.bias": "model.layers.{i}.mlp.up_proj.bias",
    "layers.{i}.down.bias": "model.layers.{i}.mlp.down_proj.bias",
}
GGUF_NAMES: Mapping[str, str] = {
    "embed.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "norm.bias": "output_norm.bias",
    "head.weight": "output.weight",
    "layers.{i}.attn_norm.weight": "blk.{i}.attn_norm.weight",
    "layers.{i}.attn_norm.bias": "blk.{i}.attn_norm.bias",
    "layers.{i}.mlp_norm.weight": "blk.{i}.ffn_norm.weight",
    "layers.{i}.attn_out_norm.weight": "blk.{i}.post_attention_norm.weight",
    "layers.{i}.mlp_out_norm.weight": "blk.{i}.post_ffw_norm.weight",
    "layers.{i}.mlp_norm.bias": "blk.{i}.ffn_norm.bias",
    "layers.{i}.q.weight": "blk.{i}.attn_q.weight",
    "layers.{i}.k.weight": "blk.{i}.attn_k.weight",
    "layers.{i}.v.weight": "blk.{i}.attn_v.weight",
    "layers.{i}.o.weight": "blk.{i}.attn_output.weight",
    "layers.{i}.q.bias": "blk.{i}.attn_q.bias",
    "layers.{i}.k.bias": "blk.{i}.attn_k.bias",
    "layers.{i}.v.bias": "blk.{i}.attn_v.bias",
    "layers.{i}.o.bias": "blk.{i}.attn_output.bias",
    "layers.{i}.q_norm.weight": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.gate.weight": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up.weight": "blk.{i}.ffn_up.weight",
    "layers.{i}.down.weight": "blk.{i}.ffn_down.weight",
    "layers.{i}.gate.bias": "blk.{i}.ffn_gate.bias",
    "layers.{i}.up.bias": "blk.{i}.ffn_up.bias",
    "layers.{i}.down.bias": "blk.{i}.ffn_down.bias",
}
# Tensors inside a layer that files carry and nobody needs: tables that follow from the spec.
HF_IGNORED = ("self_attn.rotary_emb.inv_freq",)
GGUF_IGNORED = ("attn_rot_embd.weight",)

_LAYER = re.compile(r"layers\.(\d+)\.")


def file_name(names: Mapping[str, str], canonical: str) -> str:
    """What a file calls the tensor `canonical`. KeyError when there is no such canonical name."""
    match = _LAYER.match(canonical)
    if match is None:
        return names[canonical]
    number = match.group(1)
    return names[canonical.replace(match.group(), "layers.{i}.", 1)].replace("{i}", number)


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name and shape, (out, in), of every tensor that a model of this spec has."""
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, hidden)}
    for i in range(spec.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer_shapes(spec).items()}
    shapes |= _norm_shapes(spec, "norm")
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocab_size, hidden)
    return shapes


def _norm_shapes(spec: ModelSpec, name: str) -> dict[str, tuple[int, ...]]:
    kinds = ("weight", "bias") if spec.norm_bias else ("weight",)
    return {f"{name}.{kind}": (spec.hidden_size,) for kind in kinds}


def _layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Of one layer."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    maps = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
    maps |= {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in maps.items()}
    with_bias = {"qkv": spec.qkv_bias, "o": spec.o_bias, "gate up down": spec.mlp_bias}
    for names, has_bias in with_bias.items():
        if has_bias:
            shapes |= {f"{name}.bias": maps[name][:1] for name in (names.split() if " " in names else names)}
    norms = {"attn_norm": spec.has_pre_norms, "mlp_norm": spec.has_mlp_norm}
    norms |= {"attn_out_norm": spec.has_out_norms, "mlp_out_norm": spec.has_out_norms}
    for name, is_there in norms.items():
        shapes |= _norm_shapes(spec, name) if is_there else {}
    if spec.qk_norm:
        shapes["q_norm.weight"] = qk_norm_shape(spec, spec.num_heads)
        shapes["k_norm.weight"] = qk_norm_shape(spec, spec.num_kv_heads)
    return shapes
