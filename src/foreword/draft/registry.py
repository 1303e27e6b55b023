"""Drafters by name, and where each is: the one line that a drafter needs besides its own file.

Other packages add drafters by an entry point of the group `foreword.drafters`:

    [project.entry-points."foreword.drafters"]
    bigram = "my_package.bigram:BIGRAM"

Nothing is imported before a drafter is asked for by name, so that `foreword --help` stays quick.
"""

import logging
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from foreword.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from foreword.draft.drafter_type import DrafterType

logger = logging.getLogger(__name__)

GROUP = "foreword.drafters"
# name: "module:object", in the order in which people read them and `foreword tune` tries them.
BUILT_IN: dict[str, str] = {
    "auto": "foreword.draft.auto:AUTO",
    "none": "foreword.draft.none:NONE",
    "suffix": "foreword.draft.lookup.suffix:SUFFIX",
    "ngram": "foreword.draft.lookup.ngram:NGRAM",
    "recycling": "foreword.draft.lookup.recycling:RECYCLING",
    "lookahead": "foreword.draft.lookup.lookahead:LOOKAHEAD",
    "ngram_lm": "foreword.draft.lookup.ngram_lm:NGRAM_LM",
    "memory": "foreword.draft.memory.drafter:MEMORY",
    "eagle3": "foreword.draft.heads.eagle:EAGLE3",
    "eagle2": "foreword.draft.heads.eagle:EAGLE2",
    "eagle": "foreword.draft.heads.eagle:EAGLE",
    "medusa": "foreword.draft.heads.medusa:MEDUSA",
    "medusa2": "foreword.draft.heads.medusa2:MEDUSA2",
    "draft_model": "foreword.draft.model.draft_model:DRAFT_MODEL",
    "layerskip": "foreword.draft.model.layerskip:LAYERSKIP",
    "synthetic": "foreword.draft.synthetic:SYNTHETIC",
}


def drafter_names() -> list[str]:
    """All there are, those of other packages last."""
    return list(_places())


def check_drafter_name(name: str) -> None:
    """`UnknownNameError`, which lists the names, if there is no such drafter."""
    if name not in _places():
        raise UnknownNameError("drafter", name, _places())


def drafter_type(name: str) -> "DrafterType":
    """What is known of a drafter. Its module is imported; `ConfigError` where that fails or it is none."""
    check_drafter_name(name)
    place = _places()[name]
    module, _, attribute = place.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"drafter {name} should be {place}, which cannot be imported: {error}") from error
    from foreword.draft.drafter_type import DrafterType

    if not isinstance(found, DrafterType):
        raise ConfigError(f"drafter {name} should be {place}, which is {type(found).__name__}; allowed: a DrafterType")
    if found.name != name:
        raise ConfigError(f"drafter {name} is {place}, which calls itself {found.name}; give both the same name")
    return found


def drafter_types() -> "list[DrafterType]":
    """What is known of all of them. One of another package that cannot be imported is left out, with a warning."""
    found = []
    for name in drafter_names():
        try:
            found.append(drafter_type(name))
        except ConfigError as error:
            if name in BUILT_IN:
                raise
            logger.warning("%s", error)
    return found


@cache
def _places() -> dict[str, str]:
    """Name -> "module:object". Names that come with foreword stay its own."""
    found = dict(BUILT_IN)
    for entry in entry_points(group=GROUP):
        if found.setdefault(entry.name, entry.value) != entry.value:
            logger.warning("drafter %s of %s is left out: %s has that name", entry.name, entry.value, found[entry.name])
    return found
