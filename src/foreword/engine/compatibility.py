"""Which drafters and verifiers can be combined; checked when an `LLM` is built, not while it generates.

A drafter says what it draws at random (`draft.base.Drawn`); the rule itself is asked about a tree of that kind. Chosen
guesses go with every rule, and at temperature 0 every rule is matching.
"""

import torch

from foreword.draft.base import Drafter, Drawn
from foreword.errors import ConfigError
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.params import Warp
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Verifier

_SAMPLED = Sampler(Warp(temperature=1.0), seed=0)


def check_pair(drafter: Drafter, verifier: Verifier) -> None:
    """Raise `ConfigError` with the reason where the verifier cannot verify how the drafter samples."""
    if verifier.draft_mode is not DraftMode.OWN or drafter.drawn is Drawn.NOTHING:
        return
    try:
        verifier.ask(_example(drafter.drawn), 0, 0, _SAMPLED)
    except ConfigError as error:
        raise ConfigError(
            f"drafter {drafter.name!r} and verifier {verifier.name!r} do not go together: {error}"
        ) from error


def _example(drawn: Drawn) -> DraftTree:
    """A small tree of that kind."""
    row = torch.tensor([0.5, 0.5])
    if drawn is Drawn.CHAINS:
        return DraftTree([0, 0, 1], [-1, 0, 1], draft_probs=[None, row, row])
    is_fixed = drawn is not Drawn.LOOSE_TREES
    return DraftTree([0, 0, 1], [-1, 0, 0], draft_probs=[None, row, row], shape_is_fixed=is_fixed)
