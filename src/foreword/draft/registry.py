"""Drafters by name. A new method is one file with a `make` function, and one line here."""

from importlib import import_module

from foreword.config import DraftConfig
from foreword.draft.base import Drafter
from foreword.errors import UnknownNameError
from foreword.target.target import Target

DRAFTERS: dict[str, str] = {
    "auto": "foreword.draft.auto",
    "none": "foreword.draft.none",
    "ngram": "foreword.draft.ngram",
    "suffix": "foreword.draft.suffix",
    "recycling": "foreword.draft.recycling",
    "lookahead": "foreword.draft.lookahead",
    "layerskip": "foreword.draft.layerskip",
    "draft_model": "foreword.draft.draft_model",
    "eagle": "foreword.draft.eagle.drafter",
    "eagle2": "foreword.draft.eagle.drafter",
    "eagle3": "foreword.draft.eagle.drafter",
}


def check_drafter_name(name: str) -> None:
    """Raise `UnknownNameError`, which lists the names, if there is no such drafter.

    Several may be joined by commas, each with a path after an equals sign if it needs one.
    """
    for part in name.split(","):
        bare = part.partition("=")[0] if "," in name else part
        if bare not in DRAFTERS:
            raise UnknownNameError("drafter", bare, DRAFTERS)


def make_drafter(config: DraftConfig, target: Target) -> Drafter:
    """The drafter that `config.method` names, for this target. Its module is imported only now."""
    check_drafter_name(config.method)
    if "," in config.method:
        return import_module("foreword.draft.cascade").make(config, target, make_drafter)
    return import_module(DRAFTERS[config.method]).make(config, target)
