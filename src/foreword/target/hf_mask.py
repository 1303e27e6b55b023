"""Who may attend to whom in a pass of a transformers model, as the 4-D mask that such a model takes as it is.

Rows are the nodes of all requests, columns the committed positions of each request and then the nodes again:

    request          0 0 0 1 1 1 1 1 | 0 0 0 1 1         columns: 3 and 5 committed, then 3 and 2 nodes
    node of 0        x x x . . . . . | x x . . .         itself, its ancestors and its own request's past
    node of 1        . . . x x x x x | . . . x .

A sliding window is a matter of positions, not of columns: a key is seen by the `window` positions from its own on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foreword.tree.mask import ancestor_mask
from foreword.tree.pack import PackedBatch


@dataclass(frozen=True)
class MaskPlan:
    """Which masks a model wants.

    Args:
        window: positions that a windowed layer sees, its own included; None where there is no such layer.
        layer_types: kinds of layers of a model that takes a mask for each kind by name; empty for one mask for all.
    """

    window: int | None = None
    layer_types: tuple[str, ...] = ()

    def masks(
        self, batch: PackedBatch, device: torch.device, dtype: torch.dtype
    ) -> Float[Tensor, "1 1 nodes total"] | dict[str, Float[Tensor, "1 1 nodes total"]]:
        """What to give as `attention_mask`."""
        if not self.layer_types:
            return additive(allowed_keys(batch, self.window), device, dtype)
        windows = {kind: self.window if kind == SLIDING else None for kind in self.layer_types}
        return {kind: additive(allowed_keys(batch, window), device, dtype) for kind, window in windows.items()}


SLIDING = "sliding_attention"  # transformers' name of a windowed layer's kind


def allowed_keys(batch: PackedBatch, window: int | None) -> Bool[np.ndarray, "nodes total"]:
    """True where the row's node may attend to the column's key."""
    num_past = sum(batch.kv_lens)
    mask = np.zeros((batch.num_nodes, num_past + batch.num_nodes), dtype=bool)
    column = 0
    for request, kv_len in enumerate(batch.kv_lens):
        first, end = batch.starts[request], batch.starts[request + 1]
        mask[first:end, column : column + kv_len] = True
        own = slice(num_past + first, num_past + end)
        mask[first:end, own] = _among_nodes(batch.local_parents(request).tolist(), batch.chain_lens[request])
        column += kv_len
    if window is not None:
        past = [np.arange(kv_len) for kv_len in batch.kv_lens]
        keys = np.concatenate([*past, batch.positions])
        mask &= keys[None, :] > batch.positions[:, None] - window
    return mask


def _among_nodes(parents: Sequence[int], chain_len: int) -> Bool[np.ndarray, "nodes nodes"]:
    if chain_len == len(parents):
        return np.tri(chain_len, dtype=bool)  # a chunk of a prompt: no walk over its nodes
    return ancestor_mask(parents)


def additive(
    allowed: Bool[np.ndarray, "nodes total"], device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "1 1 nodes total"]:
    """0 where attention may go, the dtype's lowest number elsewhere: what eager and sdpa attention both take."""
    mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(torch.from_numpy(~allowed), torch.finfo(dtype).min)
    return mask[None, None].to(device)
