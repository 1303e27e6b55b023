"""The drafter for people who do not want to choose one: what suits the model, under a policy that uses it where it pays.

That is the repeated text of the request itself (`suffix`): it costs almost nothing to ask, fits every model, and says how
sure it is.
"""

from foreword.config import DraftConfig
from foreword.draft.base import Drafter
from foreword.draft.suffix import make as make_suffix
from foreword.target.target import Target

MOST_NODES = 16


def make(config: DraftConfig, target: Target) -> Drafter:
    """For the registry."""
    drafter = make_suffix(config, target)
    drafter.default_num_nodes = MOST_NODES
    return drafter
