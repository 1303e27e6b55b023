"""Single-use random numbers for rejection-style verifiers.

Their streams differ from the target's own and from the drafter's, and their keys hold the step, the position of the
last committed token and the node, counted from the root. A rule may look at a node that it does not keep; whatever it learnt there must not meet
the same numbers again in the next step.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.sampling.noise import Stream, uniform_of
from foreword.sampling.sampler import Sampler


@runtime_checkable
class Chance(Protocol):
    """Where a rule's decisions come from; tests put their own numbers in its place."""

    def accepts(self, node: int, prob: float) -> bool:
        """True with probability `prob` (or surely, if it is 1 or above)."""
        ...

    def draw(self, node: int, weights: Float[Tensor, " vocab"]) -> int:
        """A token drawn in proportion to `weights`, to follow `node`."""
        ...


@dataclass(frozen=True)
class FreshNoise:
    """The numbers of one step of one request."""

    sampler: Sampler
    root_position: int  # of the last committed token
    step: int

    def accepts(self, node: int, prob: float) -> bool:
        """One number for every node; it lies strictly inside (0, 1), so 0 never passes and 1 always does."""
        return uniform_of(self.sampler.step_key(Stream.ACCEPT, self.root_position, node, self.step)) < prob

    def draw(self, node: int, weights: Float[Tensor, " vocab"]) -> int:
        """The first token whose cumulative weight exceeds a number."""
        return pick(weights, uniform_of(self.sampler.step_key(Stream.RESIDUAL, self.root_position, node, self.step)))


def pick(weights: Float[Tensor, " vocab"], number: float) -> int:
    """The token at `number` (0 to 1) of the cumulative weights; one of weight 0 is never taken."""
    cumulative = torch.cumsum(weights, dim=0)
    return int(torch.searchsorted(cumulative, cumulative[-1:] * number, right=True))
