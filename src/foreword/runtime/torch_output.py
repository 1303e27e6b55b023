"""What a pass hands back of the rows that went through the head."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.runtime.base import Draw
from foreword.sampling.warp import draw


def draw_tokens(
    logits: Float[Tensor, "rows vocab"], draws: Sequence[Draw], row_of_node: dict[int, int]
) -> list[int]:
    """The drawn token of each of `draws`; greedy ones by one argmax (the first of equals), the others row by row."""
    greedy = [draw.warp.is_greedy for draw in draws]
    largest = logits.argmax(dim=-1).tolist() if any(greedy) else []
    return [
        largest[row_of_node[d.node]] if is_greedy else draw(logits[row_of_node[d.node]], d.warp, d.key)
        for d, is_greedy in zip(draws, greedy, strict=True)
    ]


def top_tokens(
    logits: Float[Tensor, "rows vocab"], k: int
) -> tuple[Int[Tensor, "rows k"], Float[Tensor, "rows k"]]:
    """Ids of the k likeliest tokens of each row, likeliest first (the lowest id of equals first), and their log-probabilities."""
    logits = logits.float()
    values, ids = torch.topk(logits, k, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, by_value), values - torch.logsumexp(logits, dim=-1, keepdim=True)
