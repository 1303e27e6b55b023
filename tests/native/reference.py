"""The same arithmetic in float64: weights and activations rounded as the kernels round them, everything else exact.

Slow and plain on purpose: one request, a chain, no cache.
"""

import math

import torch
from torch import Tensor

from foreword.config import ModelSpec
from foreword.runtime.torch_rope import inverse_frequencies

GROUP = 64  # inputs that share an activation scale


def fake_int8(weight: Tensor) -> Tensor:
    """Weights after int8 with one scale an output."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scale).round().double() * scale.double()


def fake_activations(x: Tensor) -> Tensor:
    """Activations after int8 with one scale for each group of inputs; (n, width), float32 in, float64 out."""
    n, width = x.shape
    padded = torch.zeros(n, -(-width // GROUP) * GROUP)
    padded[:, :width] = x
    groups = padded.view(n, -1, GROUP)
    scale = groups.abs().amax(dim=2, keepdim=True) / 127
    rounded = torch.where(scale > 0, (groups / scale.clamp_min(1e-30)).round(), 0.0)
    return (rounded.double() * scale.double()).view(n, -1)[:, :width]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """float64 product of what the kernels multiply."""
    out = fake_activations(x.float()) @ fake_int8(weight).T
    return out if bias is None else out + bias.double()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension."""
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def rotate(heads: Tensor, angles: Tensor) -> Tensor:
    """(n, heads, dim), half-split."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None].double(), angles.sin()[:, None].double()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def logits(spec: ModelSpec, tensors: dict[str, Tensor], token_ids: list[int], kv_dtype: str = "float32") -> Tensor:
    """Logits of every token of a chain, float64; keys and values rounded as the cache keeps them."""
    x = tensors["embed.weight"][token_ids].double()
    positions = torch.arange(len(token_ids), dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(spec.rope, spec.head_dim, torch.device("cpu"))
    for layer in range(spec.num_layers):
        prefix = f"layers.{layer}."
        normed = rms_norm(x, tensors[prefix + "attn_norm.weight"], spec.norm_eps)
        x = x + _attention(spec, tensors, prefix, normed, angles, kv_dtype)
        normed = rms_norm(x, tensors[prefix + "mlp_norm.weight"], spec.norm_eps)
        gate, up = (linear(normed, tensors[f"{prefix}{name}.weight"]) for name in ("gate", "up"))
        x = x + linear(torch.nn.functional.silu(gate) * up, tensors[prefix + "down.weight"])
    head = tensors["embed.weight" if spec.tied_head else "head.weight"]
    return linear(rms_norm(x, tensors["norm.weight"], spec.norm_eps), head)


def _attention(
    spec: ModelSpec, tensors: dict[str, Tensor], prefix: str, normed: Tensor, angles: Tensor, kv_dtype: str
) -> Tensor:
    heads = {}
    for name, count in (("q", spec.num_heads), ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)):
        flat = linear(normed, tensors[f"{prefix}{name}.weight"], tensors.get(f"{prefix}{name}.bias"))
        heads[name] = flat.view(len(normed), count, spec.head_dim)
        if name != "v" and spec.qk_norm:
            heads[name] = rms_norm(heads[name], tensors[f"{prefix}{name}_norm.weight"], spec.norm_eps)
    q, k, v = rotate(heads["q"], angles), rotate(heads["k"], angles), heads["v"]
    if kv_dtype == "bfloat16":
        k, v = k.float().bfloat16().double(), v.float().bfloat16().double()
    k, v = (cached.repeat_interleave(spec.group_size, dim=1) for cached in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q, k) / math.sqrt(spec.head_dim)
    later = torch.ones(len(normed), len(normed), dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
    attended = torch.einsum("hnm,mhd->nhd", weights, v)
    # Each head is padded to whole lanes before it is quantised in groups.
    padded_dim = -(-spec.head_dim // 16) * 16
    padded = torch.zeros(len(normed), spec.num_heads, padded_dim, dtype=torch.float64)
    padded[:, :, : spec.head_dim] = attended
    rounded = fake_activations(padded.view(len(normed), -1).float()).view(len(normed), spec.num_heads, padded_dim)
    return rounded[:, :, : spec.head_dim].reshape(len(normed), -1) @ fake_int8(tensors[prefix + "o.weight"]).T
