"""The drafter for people who do not want to choose one: what suits the model, under a policy that uses it where it pays.

That is the repeated text of the request itself (`suffix`), and where nothing repeats, a table of what this model tends to say
(`ngram_lm`), if there is one for it. Both cost next to nothing to ask and say how sure they are.
"""

import logging

from foreword.config import DraftConfig
from foreword.draft.base import Drafter
from foreword.draft.cascade import CascadeDrafter
from foreword.draft.lookup.ngram_lm import NgramLmDrafter, table_of
from foreword.draft.lookup.suffix import make as make_suffix
from foreword.errors import CheckpointError
from foreword.target.target import Target

logger = logging.getLogger(__name__)

MOST_NODES = 16


def make(config: DraftConfig, target: Target) -> Drafter:
    """For the registry."""
    drafter = make_suffix(config, target)
    try:
        table = table_of(target)
    except CheckpointError as error:  # whoever did not ask for it can do without
        logger.warning("drafting without a table: %s", error)
        table = None
    if table is not None:
        drafter = CascadeDrafter([drafter, NgramLmDrafter(table)], config.cascade_threshold, config.cascade_merge)
    drafter.default_num_nodes = MOST_NODES
    return drafter
