"""How far a tuned model is from the original: on their distributions over the whole vocabulary, chunk by chunk."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CHUNK_ROWS = 256  # logits of so many rows at a time


class Divergence(torch.autograd.Function):
    """Mean over rows of KL(original || tuned), in nats. In float32 throughout: differences are small.

    The gradient is made together with the value, so that logits (rows x vocabulary) are never stored.
    """

    @staticmethod
    def forward(ctx: Any, tuned: Tensor, original: Tensor, head: Tensor) -> Tensor:
        """Final hidden states of both (n, H), and the head that both share (V, H)."""
        num_rows = max(1, len(tuned))
        grad, total = torch.empty_like(tuned, dtype=torch.float32), torch.zeros(())
        with torch.autocast(tuned.device.type, enabled=False):
            for start in range(0, len(tuned), _CHUNK_ROWS):
                part = slice(start, start + _CHUNK_ROWS)
                log_q, log_p = (_log_probs(x[part], head) for x in (tuned.detach(), original))
                p = log_p.exp()
                total += torch.linalg.vecdot(p, log_p - log_q).sum()
                torch.mm(log_q.exp_().sub_(p).div_(num_rows), head, out=grad[part])
        ctx.save_for_backward(grad)
        return total / num_rows

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Scale what `forward` has made."""
        return ctx.saved_tensors[0] * grads[0], None, None


def divergence(tuned: Tensor, original: Tensor, head: Tensor) -> Tensor:
    """See `Divergence`."""
    return Divergence.apply(tuned, original, head)  # type: ignore[return-value]


class WeightedGradient(torch.autograd.Function):
    """The values as they are; what goes backward through them counts `weight` times."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: float) -> Tensor:
        """The same values."""
        ctx.weight = weight
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Weighted."""
        return grads[0] * ctx.weight, None


def weighted_gradient(values: Tensor, weight: float) -> Tensor:
    """See `WeightedGradient`."""
    return WeightedGradient.apply(values, weight)  # type: ignore[return-value]


@dataclass
class Change:
    """Sums over tokens of answers that both models read."""

    num_tokens: int = 0
    nats: float = 0.0  # minus log probability of the tokens, tuned
    original_nats: float = 0.0
    divergence: float = 0.0
    num_same: int = 0  # places where both find the same token likeliest

    def add(self, tuned: Tensor, original: Tensor, head: Tensor, said: Tensor) -> None:
        """Add rows of hidden states (n, H), and the tokens that follow them (n)."""
        for start in range(0, len(said), _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            with torch.autocast(tuned.device.type, enabled=False):
                log_q, log_p = (_log_probs(x[part], head) for x in (tuned, original))
            own = said[part, None]
            self.num_tokens += len(own)
            self.nats -= float(log_q.gather(1, own).double().sum())
            self.original_nats -= float(log_p.gather(1, own).double().sum())
            self.divergence += float(torch.linalg.vecdot(log_p.exp(), log_p - log_q).double().sum())
            self.num_same += int((log_q.argmax(-1) == log_p.argmax(-1)).sum())

    def facts(self) -> dict[str, float]:
        """For card and console."""
        n = max(1, self.num_tokens)
        original, tuned = (torch.tensor(x / n).exp().item() for x in (self.original_nats, self.nats))
        return {
            "perplexity_original": round(original, 4),
            "perplexity_tuned": round(tuned, 4),
            "perplexity_change_percent": round(100 * (tuned / original - 1), 3),
            "divergence_nats": round(self.divergence / n, 5),
            "same_likeliest_token": round(self.num_same / n, 4),
        }


def _log_probs(hidden: Tensor, head: Tensor) -> Tensor:
    return torch.log_softmax(hidden.float() @ head.T, -1)
