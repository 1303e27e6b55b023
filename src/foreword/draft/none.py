"""Plain decoding: no draft, one token per pass. The baseline of every speed-up."""

from typing import final

from foreword.draft.base import BaseDrafter
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.target.target import Target


@final
class NoDrafter(BaseDrafter):
    """Every tree is its committed tokens alone."""

    name = "none"
    default_num_nodes = 0


def make(settings: DrafterSettings, target: Target) -> NoDrafter:
    """Needs nothing of the target."""
    return NoDrafter()


NONE = DrafterType(
    name="none",
    summary="plain decoding, the baseline",
    fits="the baseline",
    make=make,
    drafts=False,
    alone="it drafts nothing; leave it out",
    in_tune=False,
)
