"""Small models with random weights, awkward sizes on purpose, and batches for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from foreword.config import (
    LayerSpec,
    Llama3RopeScaling,
    ModelSpec,
    QueryTemperature,
    RopeSpec,
    YarnRopeScaling,
    qk_norm_shape,
)
from foreword.tree.pack import PackedBatch

LLAMA = ModelSpec(
    family="llama",
    hidden_size=72,  # no multiple of a group
    intermediate_size=100,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=12,  # no multiple of the lanes
    vocab_size=203,
    context_len=256,
    tied_head=True,
)
QWEN2 = replace(LLAMA, family="qwen2", hidden_size=128, num_heads=3, num_kv_heads=3, head_dim=64, qkv_bias=True)
QWEN3 = replace(
    LLAMA,
    family="qwen3",
    num_heads=4,
    num_kv_heads=1,
    head_dim=32,
    qk_norm=True,
    tied_head=False,
    intermediate_size=192,
)
LLAMA3 = replace(
    LLAMA,
    rope=RopeSpec(
        theta=500000.0,
        llama3=Llama3RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=64),
    ),
)
SPECS = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "llama3": LLAMA3}
# Between them these have every option of the spec. Windows are narrower than a tree is deep, no multiple of the lanes, and wide enough
# for whole blocks of keys before them to be left out.
_LOCAL = RopeSpec(theta=1e3)
_NARROW, _WIDE = (LayerSpec(window=window, rope=_LOCAL) for window in (5, 37))
_SANDWICH = replace(  # Gemma's
    LLAMA,
    family="gemma",
    num_layers=3,
    norms="sandwich",
    activation="gelu_tanh",
    qk_norm=True,
    layers=(_NARROW, LayerSpec(rope=RopeSpec(linear_factor=8.0)), _WIDE),
    embedding_scale=8.5,
    attention_scale=0.2,
    score_cap=2.0,
    logit_cap=1.5,
)
_PARALLEL = replace(  # Cohere's and StableLM's
    LLAMA,
    family="cohere",
    num_layers=3,
    norm_kind="layer",
    norm_bias=True,
    norms="parallel",
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    qk_norm=True,
    qk_norm_over="each_head",
    layers=(_NARROW, LayerSpec(), LayerSpec(window=37, rope=RopeSpec(num_rotated=6))),
    logit_scale=0.3,
)
_POST = replace(  # OLMo's, with Granite's scales and Ministral's temperature
    LLAMA,
    family="olmo",
    num_layers=3,
    norms="post",
    qk_norm=True,
    qk_norm_over="all_heads",
    rope=RopeSpec(
        yarn=YarnRopeScaling(factor=4.0, original_context_len=16, beta_fast=4.0),
        magnitude=1.2,
        temperature=QueryTemperature(beta=0.5, original_context_len=16),
    ),
    layers=(_NARROW, LayerSpec(rope=RopeSpec(magnitude=1.1, divisors=(1.0, 1.1, 1.3, 1.6, 2.0, 2.5))), _WIDE),
    residual_scale=0.4,
)
FAMILY_SPECS = {"sandwich": _SANDWICH, "parallel": _PARALLEL, "post": _POST}


@final
class RandomWeights:
    """A `WeightSource` of random tensors."""

    def __init__(self, spec: ModelSpec, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {name: _random(name, shape, generator) for name, shape in _shapes(spec).items()}
        self.fingerprint = f"random-{spec}-{seed}"

    def has_tensor(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=generator)
    if "norm" in name and name.endswith("weight"):
        return 1.0 + 0.2 * values
    if name == "embed.weight":
        return values.bfloat16()
    return 0.3 * values if name.endswith("bias") else values * shape[-1] ** -0.5


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, dim = spec.hidden_size, spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, hidden), "norm.weight": (hidden,)}
    has_norm_bias = spec.norm_bias and spec.norm_kind == "layer"
    if has_norm_bias:
        shapes["norm.bias"] = (hidden,)
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocab_size, hidden)
    for i in range(spec.num_layers):
        layer = f"layers.{i}."
        for name, heads in (("q", spec.num_heads), ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)):
            shapes[f"{layer}{name}.weight"] = (heads * dim, hidden)
            if spec.qkv_bias:
                shapes[f"{layer}{name}.bias"] = (heads * dim,)
        if spec.qk_norm:
            shapes[layer + "q_norm.weight"] = qk_norm_shape(spec, spec.num_heads)
            shapes[layer + "k_norm.weight"] = qk_norm_shape(spec, spec.num_kv_heads)
        norms = {"attn_norm": spec.has_pre_norms, "mlp_norm": spec.has_mlp_norm}
        norms |= {"attn_out_norm": spec.has_out_norms, "mlp_out_norm": spec.has_out_norms}
        for name in (name for name, is_there in norms.items() if is_there):
            shapes[f"{layer}{name}.weight"] = (hidden,)
            if has_norm_bias:
                shapes[f"{layer}{name}.bias"] = (hidden,)
        biased = {"o": (hidden, spec.o_bias), "down": (hidden, spec.mlp_bias)}
        biased |= dict.fromkeys(("gate", "up"), (spec.intermediate_size, spec.mlp_bias))
        shapes |= {f"{layer}{name}.bias": (size,) for name, (size, is_there) in biased.items() if is_there}
        shapes[layer + "o.weight"] = (hidden, spec.num_heads * dim)
        shapes[layer + "gate.weight"] = shapes[layer + "up.weight"] = (spec.intermediate_size, hidden)
        shapes[layer + "down.weight"] = (hidden, spec.intermediate_size)
    return shapes


def chain(token_ids: Sequence[int], kv_len: int, slot: int) -> PackedBatch:
    """One request whose nodes follow one another."""
    n = len(token_ids)
    parents = np.arange(-1, n - 1, dtype=np.int32)
    positions = np.arange(kv_len, kv_len + n, dtype=np.int32)
    return PackedBatch(np.asarray(token_ids, dtype=np.int32), parents, positions, [0, n], [kv_len], [slot])


def random_tree(
    rng: np.random.Generator, path_tokens: Sequence[int], num_nodes: int, vocab_size: int
) -> tuple[list[int], list[int], list[int]]:
    """Token ids and parents of a random tree that contains `path_tokens` from its root, and the nodes of that path."""
    tokens, parents, path = [path_tokens[0]], [-1], [0]
    while len(tokens) < num_nodes or len(path) < len(path_tokens):
        if len(path) < len(path_tokens) and (rng.random() < 0.5 or len(tokens) >= num_nodes):
            parents.append(path[-1])
            path.append(len(tokens))
            tokens.append(path_tokens[len(path) - 1])
        else:
            parents.append(int(rng.integers(len(tokens))))
            tokens.append(int(rng.integers(vocab_size)))
    return tokens, parents, path


def batch_of(
    trees: Sequence[tuple[Sequence[int], Sequence[int]]], kv_lens: Sequence[int], slots: Sequence[int]
) -> PackedBatch:
    """Several requests' (token ids, parents) as one pass."""
    token_ids: list[int] = []
    parents: list[int] = []
    positions: list[int] = []
    starts = [0]
    for (tokens, local), kv_len in zip(trees, kv_lens, strict=True):
        first = starts[-1]
        token_ids += tokens
        parents += [parent + first if parent >= 0 else -1 for parent in local]
        for parent in local:
            positions.append(kv_len if parent < 0 else positions[first + parent] + 1)
        starts.append(len(token_ids))
    columns = (np.asarray(column, dtype=np.int32) for column in (token_ids, parents, positions))
    return PackedBatch(*columns, starts, list(kv_lens), list(slots))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two float32 tensors are equal bit by bit."""
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
