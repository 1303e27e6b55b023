"""What a pass hands back of the rows that went through the head."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.sampling.sampler import Draw
from foreword.sampling.warp import NO_TOKEN, draw


def draw_tokens(
    logits: Float[Tensor, "rows vocab"],
    draws: Sequence[Draw],
    row_of: Mapping[int, int],
    names: Int[np.ndarray, " vocab"] | None = None,
) -> list[int]:
    """What each of `draws` draws, of the head's rows: greedy ones all at once, the others row by row.

    A row's bits, and so its draw, do not depend on what else is drawn. `names` as in `Need`.
    """
    largest = _argmax_rows(logits) if any(d.warp.is_greedy for d in draws) else []
    ids = None if names is None else torch.from_numpy(names).to(logits.device)
    return [
        largest[row_of[d.node]] if d.warp.is_greedy else draw(logits[row_of[d.node]], d.warp, d.key, ids) for d in draws
    ]


def _argmax_rows(logits: Float[Tensor, "rows vocab"]) -> list[int]:
    """For each row the first of its largest values; `NO_TOKEN` where that is NaN or infinite."""
    if logits.device.type == "cpu":
        best = torch.from_numpy(logits.numpy().argmax(axis=-1))  # a tenth of the time that torch takes
    else:
        best = logits.argmax(dim=-1)
    is_number = logits.gather(-1, best[:, None])[:, 0] < math.inf
    return torch.where(is_number, best, NO_TOKEN).tolist()


def top_tokens(logits: Float[Tensor, "rows vocab"], k: int) -> tuple[Int[Tensor, "rows k"], Float[Tensor, "rows k"]]:
    """Ids of each row's top-k tokens, most probable first (of equals the lowest id), and their log-probabilities."""
    values, ids = torch.topk(logits, k, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, by_value), values - torch.logsumexp(logits, dim=-1, keepdim=True)
