"""Small models with random weights, awkward sizes on purpose, and batches for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from foreword.config import Llama3RopeScaling, ModelSpec, RopeSpec
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
    if "norm" in name:
        return 1.0 + 0.2 * values
    if name == "embed.weight":
        return values.bfloat16()
    return 0.3 * values if name.endswith("bias") else values * shape[-1] ** -0.5


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, dim = spec.hidden_size, spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, hidden), "norm.weight": (hidden,)}
    if not spec.tied_head:
        shapes["head.weight"] = (spec.vocab_size, hidden)
    for i in range(spec.num_layers):
        layer = f"layers.{i}."
        for name, heads in (("q", spec.num_heads), ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)):
            shapes[f"{layer}{name}.weight"] = (heads * dim, hidden)
            if spec.qkv_bias:
                shapes[f"{layer}{name}.bias"] = (heads * dim,)
        if spec.qk_norm:
            shapes[layer + "q_norm.weight"] = shapes[layer + "k_norm.weight"] = (dim,)
        shapes[layer + "attn_norm.weight"] = shapes[layer + "mlp_norm.weight"] = (hidden,)
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
