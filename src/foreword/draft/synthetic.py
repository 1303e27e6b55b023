"""Drafts of a set quality: a known answer, each token right with a set probability.

For measuring what an engine costs apart from what a drafter knows. The answer is the request's reference
(`DraftingParams.reference`): as long as the text so far is its beginning, what comes next is drafted from it, token by
token wrong with chance 1 - alpha. Whether a place is wrong depends on the place alone, so that a run repeats. Without
a reference it proposes nothing.
"""

from collections.abc import Sequence
from typing import final

from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.errors import ConfigError
from foreword.sampling.noise import Stream, row_key
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

DEFAULT_ALPHA = 0.7
_SEED = 0
_TOP_BITS = 53


@final
class SyntheticDrafter(BaseDrafter):
    """Chains whose tokens are right with probability `alpha`, independently."""

    name = "synthetic"
    uses_reference = True

    def __init__(self, alpha: float, vocab_size: int) -> None:
        self.alpha, self._vocab_size = alpha, vocab_size

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """A chain of what comes next, flaws included."""
        return [
            DraftTree.chain(known_ids(r, plan), self._guesses(r, plan)) for r, plan in zip(requests, plans, strict=True)
        ]

    def _guesses(self, request: RequestView, plan: Plan) -> list[int]:
        done = request.token_ids[request.prompt_len :]
        reference = request.reference_ids
        if request.kv_len + plan.num_known < len(request.token_ids) or list(reference[: len(done)]) != list(done):
            return []
        wanted = reference[len(done) : len(done) + min(plan.num_nodes, plan.depth)]
        return [self._flawed(token, len(request.token_ids) + i) for i, token in enumerate(wanted)]

    def _flawed(self, token: int, position: int) -> int:
        """The token itself, or another one at positions drawn to be wrong."""
        chance = (row_key(_SEED, 0, Stream.DRAFT, position) >> (64 - _TOP_BITS)) / (1 << _TOP_BITS)
        return token if chance < self.alpha else (token + 1) % self._vocab_size


def make(settings: DrafterSettings, target: Target) -> SyntheticDrafter:
    """`synthetic=0.7` sets the probability."""
    try:
        alpha = DEFAULT_ALPHA if settings.path is None else float(settings.path)
    except ValueError:
        alpha = -1.0
    if not 0 <= alpha <= 1:
        raise ConfigError(
            f"drafter synthetic={settings.path}; allowed: a probability from 0 to 1, such as synthetic=0.7"
        )
    return SyntheticDrafter(alpha, target.spec.vocab_size)


SYNTHETIC = DrafterType(
    name="synthetic",
    summary="for measuring: drafts a reference with planted errors; `synthetic=0.7` is right with probability 0.7 per token",
    needs="the answer itself",
    fits="measuring an engine, not drafting",
    make=make,
    takes="CHANCE",
    in_tune=False,
)
