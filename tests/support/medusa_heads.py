"""Medusa heads for tiny targets, written in every layout that is about."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from foreword.config import ModelSpec

Heads = dict[str, Tensor]  # by the names of vLLM's layout


def random_heads(
    target: ModelSpec,
    seed: int = 0,
    num_heads: int = 3,
    num_layers: int = 1,
    bias: bool = True,
    rows: int | None = None,
) -> Heads:
    """Heads with an output of their own each, over `rows` tokens (the whole vocabulary unless given)."""
    generator = torch.Generator().manual_seed(seed)
    hidden = target.hidden_size
    heads: Heads = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            name = f"blocks.{head}.layers.{layer}"
            heads[f"{name}.weight"] = torch.randn(hidden, hidden, generator=generator) / hidden**0.5
            if bias:
                heads[f"{name}.bias"] = 0.3 * torch.randn(hidden, generator=generator)
        shape = rows or target.vocab_size, hidden
        heads[f"lm_heads.{head}.weight"] = 2 * torch.randn(shape, generator=generator) / hidden**0.5
    return heads


def legacy_names(heads: Heads, prefix: str = "") -> Heads:
    """The names that Medusa's authors save."""
    num_layers = 1 + max(int(name.split(".")[3]) for name in heads if name.startswith("blocks."))
    named = {}
    for name, tensor in heads.items():
        parts = name.split(".")
        if parts[0] == "blocks":
            named[f"{prefix}{parts[1]}.{parts[3]}.linear.{parts[4]}"] = tensor
        else:
            named[f"{prefix}{parts[1]}.{num_layers}.weight"] = tensor
    return named


def vllm_config(target: ModelSpec, heads: Heads, **options: Any) -> dict[str, Any]:
    """config.json of vLLM's layout."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "truncated_vocab_size": len(heads["lm_heads.0.weight"]),
        "num_heads": sum(name.endswith("layers.0.weight") for name in heads),
        "num_hidden_layers": 1 + max(int(name.split(".")[3]) for name in heads if name.startswith("blocks.")),
        **options,
    }


def save_heads(folder: Path, config: dict[str, Any], tensors: Heads, name: str = "model.safetensors") -> Path:
    """A folder with config.json and one file of tensors; a name that ends in .pt or .bin is pickled."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder


def reference_logits(heads: Heads, hidden: Tensor, head: int) -> Tensor:
    """What one head says of hidden states (n, H), written out."""
    x, layer = hidden, 0
    while (weight := heads.get(f"blocks.{head}.layers.{layer}.weight")) is not None:
        bias = heads.get(f"blocks.{head}.layers.{layer}.bias", torch.zeros(len(weight)))
        gate = x @ weight.to(x.dtype).T + bias.to(x.dtype)
        x, layer = x + gate * torch.sigmoid(gate), layer + 1
    return x @ heads[f"lm_heads.{head}.weight"].to(x.dtype).T
