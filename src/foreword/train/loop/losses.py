"""Losses of drafters: their distribution against the target's."""

from typing import Any

import torch
from torch import Tensor

_CHUNK_ROWS = 1024  # logits of so many rows at a time: no full table is ever kept


class HeadLoss(torch.autograd.Function):
    """Cross-entropy of softmax(x @ head.T) against soft targets, summed over rows with weights. The head may be frozen.

    The gradient is made together with the loss, chunk by chunk, so that the logits (rows x vocabulary, the largest
    tensor of all) are never stored. Matrix products run in the dtype of `targets`, sums in float32.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, head: Tensor, targets: Tensor, places: Tensor, weights: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss, and for each row whether no token is likelier than the wanted one.

        x (n, H), head (V, H), targets (m, V), places (n): each row's own among the targets, weights (n), wanted (n).
        """
        dtype = targets.dtype
        rows, matrix = x.detach().to(dtype), head.detach().to(dtype)
        trains_head = ctx.needs_input_grad[1]
        grad_x = torch.empty_like(rows)
        grad_head = torch.zeros(head.shape, device=x.device) if trains_head else None
        loss = torch.zeros((), device=x.device)
        is_right = torch.empty(len(rows), dtype=torch.bool, device=x.device)
        for start in range(0, len(rows), _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            logits = (rows[part] @ matrix.T).float()
            is_right[part] = logits.gather(1, wanted[part, None])[:, 0] >= logits.amax(-1)
            target, weight = targets[places[part]].float(), weights[part, None]
            log_q = torch.log_softmax(logits, -1)
            loss -= torch.linalg.vecdot(target, log_q) @ weights[part]
            # Soft targets sum to 1 but for rounding.
            grad = log_q.exp_().sub_(target).mul_(weight).to(dtype)
            torch.mm(grad, matrix, out=grad_x[part])
            if grad_head is not None:
                grad_head += grad.T @ rows[part]
        ctx.save_for_backward(grad_x, grad_head)
        ctx.mark_non_differentiable(is_right)
        ctx.x_dtype = x.dtype
        return loss, is_right

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Scale what `forward` has made."""
        grad_x, grad_head = ctx.saved_tensors
        for_head = None if grad_head is None else grad_head * grads[0]
        return (grad_x.to(ctx.x_dtype) * grads[0], for_head, None, None, None, None)


def head_loss(
    x: Tensor, head: Tensor, targets: Tensor, places: Tensor, weights: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """See `HeadLoss`."""
    return HeadLoss.apply(x, head, targets, places, weights, wanted)  # type: ignore[return-value]


def best_tokens(x: Tensor, head: Tensor) -> Tensor:
    """Each row's top-1 token, without storing all logits."""
    parts = [(x[i : i + _CHUNK_ROWS] @ head.T).argmax(-1) for i in range(0, len(x), _CHUNK_ROWS)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=x.device)


def soft_targets(hidden: Tensor, head: Tensor) -> Tensor:
    """The target's distribution over the draft vocabulary, renormalised (n, V_d), in the dtype of `hidden`."""
    out = torch.empty(len(hidden), len(head), dtype=hidden.dtype, device=hidden.device)
    for start in range(0, len(hidden), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        out[part] = torch.softmax((hidden[part] @ head.T).float(), -1)
    return out


def mixed_targets(hidden: Tensor, head: Tensor, wanted: Tensor, soft: float) -> Tensor:
    """`soft` parts of the target's distribution over the draft vocabulary, the rest of its choice `wanted` (n, V_d).

    A row whose choice is not drafted (-1) is not to be used.
    """
    if soft > 0:
        targets = soft_targets(hidden, head).mul_(soft)
    else:
        targets = torch.zeros(len(wanted), len(head), dtype=hidden.dtype, device=hidden.device)
    if soft < 1:
        chosen = torch.full((len(wanted), 1), 1 - soft, dtype=targets.dtype, device=targets.device)
        targets.scatter_add_(1, wanted.clamp_min(0)[:, None], chosen)
    return targets
