"""Attention of one request's nodes over its cached rows.

Query heads that share a key-value head are folded into rows, so that a group reads its keys once:

    queries (kv_heads, nodes * group, dim)   against   keys (kv_heads, rows, dim)

A window is a matter of positions, never of rows: a node at position p sees positions above p - window, of the committed
rows and of its own ancestors. Committed rows that no node of the pass sees are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foreword.config import ModelSpec
from foreword.runtime.torch_kv_cache import PassRows, TorchKVCache
from foreword.tree.mask import ancestor_mask
from foreword.tree.pack import PackedBatch


@dataclass(frozen=True, eq=False)
class View:
    """What one request's nodes see of its rows, under one window."""

    begin: int  # rows before it are seen by none
    bias: Float[Tensor, "rows total"] | None  # 0 where a folded row may look, -inf elsewhere; None: everywhere


@dataclass(frozen=True, eq=False)
class Span:
    """One request's share of a pass."""

    first: int  # its nodes are [first, end) of the batch
    end: int
    views: Mapping[int | None, View]  # by window
    rows: PassRows


@dataclass(frozen=True)
class Scoring:
    """How scores become weights."""

    window: int | None
    scale: float
    cap: float | None


def make_spans(batch: PackedBatch, cache: TorchKVCache, spec: ModelSpec, like: Tensor) -> list[Span]:
    """Claim cache rows for every request's nodes and build the masks, once per pass; `like` gives device and dtype."""
    spans = []
    for request, slot in enumerate(batch.slots):
        first, end = batch.starts[request], batch.starts[request + 1]
        kv_len = batch.kv_lens[request]
        assert cache.length(slot) == kv_len, f"slot {slot} holds {cache.length(slot)} rows, the batch says {kv_len}"
        rows = cache.begin_pass(slot, end - first)
        views = {window: _view(batch, request, window, spec.group_size, like) for window in spec.windows}
        spans.append(Span(first, end, views, rows))
    return spans


def visible(batch: PackedBatch, request: int) -> Bool[np.ndarray, "nodes nodes"]:
    """Which of a request's nodes each of them may attend to: its ancestors and itself."""
    num_nodes = batch.starts[request + 1] - batch.starts[request]
    if batch.chain_lens[request] == num_nodes:
        return np.tri(num_nodes, dtype=bool)
    return ancestor_mask(batch.local_parents(request).tolist())


def _view(batch: PackedBatch, request: int, window: int | None, group_size: int, like: Tensor) -> View:
    """Rows and additive mask, each node's row repeated for its group."""
    first, end, kv_len = batch.starts[request], batch.starts[request + 1], batch.kv_lens[request]
    # The root stands at kv_len, every other node after it: none sees further back.
    begin = 0 if window is None else max(0, kv_len + 1 - window)
    if end - first == 1:
        return View(begin, None)
    seen = visible(batch, request)
    num_nodes, num_cached = end - first, kv_len - begin
    hidden = np.zeros((num_nodes, num_cached + num_nodes), dtype=bool)
    hidden[:, num_cached:] = ~seen
    if window is not None:
        own = batch.positions[first:end]
        positions = np.concatenate((np.arange(begin, kv_len), own))
        hidden |= own[:, None] - positions >= window
    folded = torch.from_numpy(np.repeat(hidden, group_size, axis=0)).to(like.device)
    return View(begin, like.new_zeros(folded.shape).masked_fill_(folded, float("-inf")))


def attend(
    heads: Float[Tensor, "nodes heads dim"], spans: Sequence[Span], layer: int, scoring: Scoring
) -> Float[Tensor, "nodes width"]:
    """Write the nodes' keys and values into the cache, then attend.

    `heads` holds query, key and value heads, in this order, positions already applied.
    """
    outputs = [_attend_one(heads[span.first : span.end], span, layer, scoring) for span in spans]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_one(
    heads: Float[Tensor, "nodes heads dim"], span: Span, layer: int, scoring: Scoring
) -> Float[Tensor, "nodes width"]:
    new = span.rows.new[layer]
    _, num_kv_heads, num_nodes, head_dim = new.shape
    num_heads = heads.shape[1] - 2 * num_kv_heads
    group_size = num_heads // num_kv_heads
    new.copy_(heads[:, num_heads:].view(num_nodes, 2, num_kv_heads, head_dim).permute(1, 2, 0, 3))
    queries = heads[:, :num_heads].view(num_nodes, num_kv_heads, group_size, head_dim).transpose(0, 1)
    folded = queries.reshape(1, num_kv_heads, num_nodes * group_size, head_dim)
    view = span.views[scoring.window]
    keys, values = (rows[layer][:, :, view.begin :] for rows in (span.rows.keys, span.rows.values))
    if scoring.cap is None:
        mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=view.bias, scale=scoring.scale)
    else:
        mixed = _mix_capped(folded, keys, values, view.bias, scoring.scale, scoring.cap)
    unfolded = mixed.view(num_kv_heads, num_nodes, group_size, head_dim).transpose(0, 1)
    return unfolded.reshape(num_nodes, num_heads * head_dim)


def _mix_capped(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float, cap: float
) -> Float[Tensor, "1 kv_heads rows dim"]:
    """Attention whose scores s are cap tanh(s / cap), before the mask."""
    scores = torch.tanh(queries @ keys.transpose(-1, -2) * (scale / cap)) * cap
    scores = scores if bias is None else scores + bias
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype) @ values
