"""From a configuration and a target to the drafter that drafts for it."""

from foreword.draft.base import Drafter
from foreword.draft.cascade import CascadeDrafter
from foreword.draft.draft_config import DraftConfig
from foreword.sampling.draft_sampling import DraftMode
from foreword.target.target import Target


def make_drafter(config: DraftConfig, target: Target, draft_mode: DraftMode | None = None) -> Drafter:
    """The drafters that a configuration names, for this target: one, or several as a cascade.

    Args:
        config: names, paths and options.
        target: what they draft for.
        draft_mode: whose noise draft tokens are sampled with, as the verifier asks (`Verifier.draft_mode`); None: the
            target's.
    """
    made = [member.type.make(member.with_mode(draft_mode), target) for member in config.members]
    together = config.cascade
    return CascadeDrafter(made, together.cascade_threshold, together.cascade_merge) if together else made[0]
