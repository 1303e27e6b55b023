"""Attention of one request's nodes over its cached rows.

Query heads that share a key-value head are folded into rows, so that a group reads its keys once:

    queries (kv_heads, nodes * group, dim)   against   keys (kv_heads, kv_len + nodes, dim)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foreword.runtime.torch_kv_cache import PassRows, TorchKVCache
from foreword.tree.mask import ancestor_mask
from foreword.tree.pack import PackedBatch


@dataclass(frozen=True, eq=False)
class Span:
    """One request's share of a pass."""

    first: int  # its nodes are [first, end) of the batch
    end: int
    bias: Float[Tensor, "rows total"] | None  # 0 where a folded row may look, -inf elsewhere; None: everywhere
    rows: PassRows


def make_spans(batch: PackedBatch, cache: TorchKVCache, group_size: int, like: Tensor) -> list[Span]:
    """Claim cache rows for every request's nodes and build the masks, once per pass; `like` gives device and dtype."""
    spans = []
    for request, slot in enumerate(batch.slots):
        first, end = batch.starts[request], batch.starts[request + 1]
        kv_len = batch.kv_lens[request]
        assert cache.length(slot) == kv_len, f"slot {slot} holds {cache.length(slot)} rows, the batch says {kv_len}"
        rows = cache.begin_pass(slot, end - first)
        bias = None if end - first == 1 else _mask_bias(visible(batch, request), kv_len, group_size, like)
        spans.append(Span(first, end, bias, rows))
    return spans


def visible(batch: PackedBatch, request: int) -> Bool[np.ndarray, "nodes nodes"]:
    """Which of a request's nodes each of them may attend to: its ancestors and itself."""
    num_nodes = batch.starts[request + 1] - batch.starts[request]
    if batch.chain_lens[request] == num_nodes:
        return np.tri(num_nodes, dtype=bool)
    return ancestor_mask(batch.local_parents(request).tolist())


def attend(heads: Float[Tensor, "nodes heads dim"], spans: Sequence[Span], layer: int) -> Float[Tensor, "nodes width"]:
    """Write the nodes' keys and values into the cache, then attend.

    `heads` holds query, key and value heads, in this order, positions already applied.
    """
    outputs = [_attend_one(heads[span.first : span.end], span, layer) for span in spans]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_one(heads: Float[Tensor, "nodes heads dim"], span: Span, layer: int) -> Float[Tensor, "nodes width"]:
    new = span.rows.new[layer]
    _, num_kv_heads, num_nodes, head_dim = new.shape
    num_heads = heads.shape[1] - 2 * num_kv_heads
    group_size = num_heads // num_kv_heads
    new.copy_(heads[:, num_heads:].view(num_nodes, 2, num_kv_heads, head_dim).permute(1, 2, 0, 3))
    queries = heads[:, :num_heads].view(num_nodes, num_kv_heads, group_size, head_dim).transpose(0, 1)
    folded = queries.reshape(1, num_kv_heads, num_nodes * group_size, head_dim)
    mixed = F.scaled_dot_product_attention(folded, span.rows.keys[layer], span.rows.values[layer], attn_mask=span.bias)
    unfolded = mixed.view(num_kv_heads, num_nodes, group_size, head_dim).transpose(0, 1)
    return unfolded.reshape(num_nodes, num_heads * head_dim)


def _mask_bias(mask: Bool[np.ndarray, "nodes nodes"], kv_len: int, group_size: int, like: Tensor) -> Tensor:
    """Additive mask over cached and new rows, each node's row repeated for its group."""
    hidden = torch.from_numpy(np.repeat(~mask, group_size, axis=0)).to(like.device)
    bias = like.new_zeros(len(hidden), kv_len + len(mask))
    bias[:, kv_len:].masked_fill_(hidden, float("-inf"))
    return bias
