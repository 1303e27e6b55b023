"""The default drafter: what suits the model, under a policy that drafts only where that is faster.

It copies repeated text of the request itself (`suffix`) and, where nothing repeats, uses an n-gram table of the model's own
answers (`ngram_lm`), if there is one for it. Both are cheap to call and return calibrated probabilities.
"""

import logging
from dataclasses import dataclass

from foreword.draft.base import Drafter
from foreword.draft.cascade import CascadeDrafter, CascadeOptions
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.lookup.ngram_lm import NgramLmDrafter, table_of
from foreword.draft.lookup.suffix import SuffixDrafter, SuffixOptions, remembers
from foreword.errors import CheckpointError
from foreword.target.target import Target

logger = logging.getLogger(__name__)

MOST_NODES = 16


@dataclass(frozen=True, kw_only=True)
class AutoOptions(SuffixOptions, CascadeOptions):
    """Those of its parts."""


def make(settings: DrafterSettings, target: Target) -> Drafter:
    """`suffix`, and `ngram_lm` behind it where there is a table."""
    options: AutoOptions = settings.options
    drafter = SuffixDrafter(options, target.spec.vocab_size)
    try:
        table = table_of(target)
    except CheckpointError as error:  # it was not named, so its absence is no error
        logger.warning("drafting without a table: %s", error)
        table = None
    if table is not None:
        drafter = CascadeDrafter([drafter, NgramLmDrafter(table)], options.cascade_threshold, options.cascade_merge)
    drafter.default_num_nodes = MOST_NODES
    return drafter


AUTO = DrafterType(
    name="auto",
    summary="`suffix`, then `ngram_lm` where there is a table for the model; "
    "chooses the draft length from measured pass times, 0 when speculation would be slower",
    fits="when in doubt: drafts only where that is faster",
    make=make,
    options=AutoOptions,
    remembers=remembers,
    alone="it is suffix (and ngram_lm, where there is a table for the model), drafting only what pays; name the drafters "
    "themselves, with policy adaptive (--adaptive)",
)
