"""Drafters by name. A new method is one file with a `make` function, and one line here."""

from importlib import import_module

from foreword.config import DraftConfig
from foreword.draft.base import Drafter
from foreword.errors import UnknownNameError
from foreword.target.target import Target

DRAFTERS: dict[str, str] = {
    "none": "foreword.draft.none",
    "ngram": "foreword.draft.ngram",
}


def check_drafter_name(name: str) -> None:
    """Raise `UnknownNameError`, which lists the names, if there is no such drafter."""
    if name not in DRAFTERS:
        raise UnknownNameError("drafter", name, DRAFTERS)


def make_drafter(config: DraftConfig, target: Target) -> Drafter:
    """The drafter that `config.method` names, for this target. Its module is imported only now."""
    check_drafter_name(config.method)
    return import_module(DRAFTERS[config.method]).make(config, target)
