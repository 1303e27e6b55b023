"""Drafters that were trained for a model and come with foreword, or lie in the cache: found by the model's fingerprint.

    checkpoints/NAME/config.json      {"foreword": {"method": "eagle3", "target_fingerprint": ...}, ...}

Looked for in `checkpoints` beside the source, inside the installed package, and in the cache folder, the last first: a
drafter of the user's own making wins.
"""

from pathlib import Path

from foreword.checkpoint.cache import cache_folder
from foreword.checkpoint.drafter_kind import card_of
from foreword.checkpoint.json_file import read_json
from foreword.errors import CheckpointError

_SAME_FILES = {"eagle2": "eagle"}  # drafters that are served from what was trained as another
_PACKAGE = Path(__file__).parents[1]


def trained_drafter(method: str, target_fingerprint: str) -> Path | None:
    """The folder of a drafter of this method for this model; None where there is none."""
    method = _SAME_FILES.get(method, method)
    for root in (cache_folder() / "checkpoints", _PACKAGE / "checkpoints", _PACKAGE.parents[1] / "checkpoints"):
        for card in sorted(root.glob("*/config.json")):
            if _belongs(card, method, target_fingerprint):
                return card.parent
    return None


def _belongs(card: Path, method: str, target_fingerprint: str) -> bool:
    try:
        facts = card_of(read_json(card))
    except CheckpointError:
        return False  # no card of a trained drafter
    return facts.get("method") == method and facts.get("target_fingerprint") == target_fingerprint
