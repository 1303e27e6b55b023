"""Names and shapes of parameters, as data.

Inside foreword a tensor has one name, whatever file it came from (`runtime/base.py` lists them). The tables here say
what Hugging Face and GGUF call it; `expected_shapes` says which tensors a model of a given spec must have.
"""

import re
from collections.abc import Mapping

from foreword.config import ModelSpec

# canonical name -> name in the file; "{i}" is the layer's number
HF_NAMES: Mapping[str, str] = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "layers.{i}.attn_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.q.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.q.bias": "model.layers.{i}.self_attn.q_proj.bias",
    "layers.{i}.k.bias": "model.layers.{i}.self_attn.k_proj.bias",
    "layers.{i}.v.bias": "model.layers.{i}.self_attn.v_proj.bias",
    "layers.{i}.q_norm.weight": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.k_norm.weight": "model.layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up.weight": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down.weight": "model.layers.{i}.mlp.down_proj.weight",
}
GGUF_NAMES: Mapping[str, str] = {
    "embed.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
    "layers.{i}.attn_norm.weight": "blk.{i}.attn_norm.weight",
    "layers.{i}.mlp_norm.weight": "blk.{i}.ffn_norm.weight",
    "layers.{i}.q.weight": "blk.{i}.attn_q.weight",
    "layers.{i}.k.weight": "blk.{i}.attn_k.weight",
    "layers.{i}.v.weight": "blk.{i}.attn_v.weight",
    "layers.{i}.o.weight": "blk.{i}.attn_output.weight",
    "layers.{i}.q.bias": "blk.{i}.attn_q.bias",
    "layers.{i}.k.bias": "blk.{i}.attn_k.bias",
    "layers.{i}.v.bias": "blk.{i}.attn_v.bias",
    "layers.{i}.q_norm.weight": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.gate.weight": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up.weight": "blk.{i}.ffn_up.weight",
    "layers.{i}.down.weight": "blk.{i}.ffn_down.weight",
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
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, spec.hidden_size)}
    for i in range(spec.num_layers):
        layer = f"layers.{i}."
        shapes[layer + "attn_norm.weight"] = (spec.hidden_size,)
        shapes[layer + "q.weight"] = (queries, spec.hidden_size)
        shapes[layer + "k.weight"] = (keys, spec.hidden_size)
        shapes[layer + "v.weight"] = (keys, spec.hidden_size)
        shapes[layer + "o.weight"] = (spec.hidden_size, queries)
        if spec.qkv_bias:
            shapes[layer + "q.bias"] = (queries,)
            shapes[layer + "k.bias"] = (keys,)
            shapes[layer + "v.bias"] = (keys,)
        if spec.qk_norm:
            shapes[layer + "q_norm.weight"] = (spec.head_dim,)
            shapes[layer + "k_norm.weight"] = (spec.head_dim,)
        shapes[layer + "mlp_norm.weight"] = (spec.hidden_size,)
        shapes[layer + "gate.weight"] = (spec.intermediate_size, spec.hidden_size)
        shapes[layer + "up.weight"] = (spec.intermediate_size, spec.hidden_size)
        shapes[layer + "down.weight"] = (spec.hidden_size, spec.intermediate_size)
    shapes["norm.weight"] = (spec.hidden_size,)
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocab_size, spec.hidden_size)
    return shapes
