"""Plain decoding: no guesses, one token a pass. The baseline that every speed-up is measured against."""

from typing import final

from foreword.config import DraftConfig
from foreword.draft.base import BaseDrafter
from foreword.target.target import Target


@final
class NoDrafter(BaseDrafter):
    """Every tree is its known nodes alone."""

    name = "none"


def make(config: DraftConfig, target: Target) -> NoDrafter:
    """For the registry: needs nothing of the target."""
    return NoDrafter()
