"""EAGLE networks for tiny targets: random ones, and one that is taught a text until it knows the next feature."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from foreword.config import ModelSpec
from foreword.draft.heads.eagle_files import EagleFiles
from foreword.draft.heads.eagle_network import EagleNetwork, load_network, taps_of

INTERMEDIATE = 96
LAYER = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip


def head_config(target: ModelSpec, is_eagle3: bool, **options: Any) -> dict[str, Any]:
    """The config.json of a network for this target."""
    return {
        "architectures": ["LlamaForCausalLMEagle3" if is_eagle3 else "LlamaForCausalLM"],
        "hidden_size": target.hidden_size,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": 512,
        "rms_norm_eps": target.norm_eps,
        "rope_theta": target.rope.theta,
        **options,
    }


def head_tensors(
    target: ModelSpec, is_eagle3: bool, seed: int = 0, draft_ids: Tensor | None = None, num_taps: int = 3
) -> dict[str, Tensor]:
    """Random tensors by the official names. `draft_ids` (ascending) make a reduced vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    hidden, width = target.hidden_size, target.num_heads * target.head_dim
    kv_width, inputs = target.num_kv_heads * target.head_dim, 2 * hidden if is_eagle3 else hidden
    prefix = "midlayer." if is_eagle3 else "layers.0."
    sizes = {
        "q": (width, inputs), "k": (kv_width, inputs), "v": (kv_width, inputs), "o": (hidden, width),
        "gate": (INTERMEDIATE, hidden), "up": (INTERMEDIATE, hidden), "down": (hidden, INTERMEDIATE),
    }  # fmt: skip

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    tensors = {f"{prefix}{LAYER[name]}.weight": matrix(*shape) for name, shape in sizes.items()}
    norms = ["post_attention_layernorm", *(["input_layernorm", "hidden_norm"] if is_eagle3 else [])]
    tensors |= {f"{prefix}{name}.weight": 1 + 0.2 * torch.randn(hidden, generator=generator) for name in norms}
    if not is_eagle3:
        return tensors | {"fc.weight": matrix(hidden, 2 * hidden), "fc.bias": 0.1 * torch.randn(hidden)}
    tensors["fc.weight"] = matrix(hidden, num_taps * hidden)
    tensors["norm.weight"] = 1 + 0.2 * torch.randn(hidden, generator=generator)
    num_rows = target.vocab_size if draft_ids is None else len(draft_ids)
    tensors["lm_head.weight"] = 3 * matrix(num_rows, hidden)
    if draft_ids is not None:
        tensors["d2t"] = draft_ids - torch.arange(len(draft_ids))
        tensors["t2d"] = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill_(0, draft_ids, True)
    return tensors


def stream_norms(target: ModelSpec, kind: str, num_taps: int = 3) -> dict[str, Tensor]:
    """Random norms of the streams before fc, far from all ones: "norm_before_fc" or "fc_norm"."""
    generator = torch.Generator().manual_seed(8)
    hidden = target.hidden_size
    if kind == "norm_before_fc":
        return {"input_norm.weight": 1 + 0.8 * torch.randn(num_taps * hidden, generator=generator)}
    return {
        f"fc_norm.{i}.weight": (i + 1) * (1 + 0.8 * torch.randn(hidden, generator=generator)) for i in range(num_taps)
    }


def reference_norms(features: Tensor, tensors: dict[str, Tensor], eps: float) -> Tensor:
    """Concatenated streams (n, taps * hidden) as fc reads them, written out."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.to(x.dtype)

    if "input_norm.weight" in tensors:
        return norm(features, tensors["input_norm.weight"])
    weights = [tensors[name] for name in sorted(tensors) if name.startswith("fc_norm.")]
    parts = features.chunk(len(weights) or 1, -1)
    return (
        torch.cat([norm(part, weight) for part, weight in zip(parts, weights, strict=True)], -1)
        if weights
        else features
    )


def save_head(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """A folder as the authors of the methods lay it out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def network(folder: Path, is_eagle3: bool, target: ModelSpec, weights: Any, runtime: Any) -> EagleNetwork:
    """The folder's network, loaded beside a target."""
    return load_network(EagleFiles(folder), is_eagle3, target, weights, runtime)


def reference_layer(
    target: ModelSpec,
    tensors: dict[str, Tensor],
    inputs: Tensor,
    embedded: Tensor | None,
    options: dict[str, Any],
    layer: int = 0,
) -> Tensor:
    """States of a chain of pairs, in plain torch: causal attention written out, no cache, no fused maps.

    Args:
        inputs: g of each pair (EAGLE-3), or fc of embedding and feature (EAGLE-1), (n, hidden); float64 or float32.
        embedded: embeddings of the tokens (EAGLE-3).
        layer: later ones are plain: `inputs` is the output of the layer before.
    """
    prefix = f"layers.{layer}." if embedded is None else "midlayer."
    w = {name: tensors[f"{prefix}{part}.weight"].to(inputs.dtype) for name, part in LAYER.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        weight = tensors[prefix + name + ".weight"].to(x.dtype)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + target.norm_eps) * weight

    residual, read = inputs, norm(inputs, "input_layernorm") if layer else inputs
    if embedded is not None:
        normed = norm(inputs, "hidden_norm")
        read = torch.cat((norm(embedded.to(inputs.dtype), "input_layernorm"), normed), -1)
        residual = normed if options.get("norm_before_residual") else inputs
    n, dim = len(inputs), target.head_dim
    heads = [(read @ w[name].T).view(n, -1, dim).transpose(0, 1) for name in "qkv"]
    frequencies = target.rope.theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = (torch.arange(n, dtype=torch.float64)[:, None] * frequencies).repeat(1, 2).to(inputs.dtype)

    def turn(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

    q, k, v = turn(heads[0]), turn(heads[1]), heads[2]
    k, v = (x.repeat_interleave(target.group_size, 0) for x in (k, v))
    scores = (q @ k.transpose(1, 2) / dim**0.5).masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
    mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)
    x = residual + mixed @ w["o"].T
    normed = norm(x, "post_attention_layernorm")
    return x + (torch.nn.functional.silu(normed @ w["gate"].T) * (normed @ w["up"].T)) @ w["down"].T


__all__ = [
    "head_config", "head_tensors", "network", "reference_layer", "reference_norms", "save_head", "stream_norms", "taps_of",
]  # fmt: skip
