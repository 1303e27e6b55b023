"""Drafters by name. A new method is one file with a `make` function, and one line here."""

from importlib import import_module

from foreword.config import DraftConfig
from foreword.draft.base import Drafter
from foreword.draft.kinds import TRIMMED, WITHOUT_WEIGHTS
from foreword.errors import ConfigError, UnknownNameError
from foreword.target.target import Target

DRAFTERS: dict[str, str] = {
    "auto": "foreword.draft.auto",
    "none": "foreword.draft.none",
    "ngram": "foreword.draft.lookup.ngram",
    "suffix": "foreword.draft.lookup.suffix",
    "recycling": "foreword.draft.lookup.recycling",
    "lookahead": "foreword.draft.lookup.lookahead",
    "ngram_lm": "foreword.draft.lookup.ngram_lm",
    "layerskip": "foreword.draft.model.layerskip",
    "synthetic": "foreword.draft.synthetic",
    "draft_model": "foreword.draft.model.draft_model",
    "medusa": "foreword.draft.heads.medusa",
    "medusa2": "foreword.draft.heads.medusa2",
    "eagle": "foreword.draft.heads.eagle",
    "eagle2": "foreword.draft.heads.eagle",
    "eagle3": "foreword.draft.heads.eagle",
}


def check_drafter_name(name: str) -> None:
    """Raise `UnknownNameError`, which lists the names, if there is no such drafter.

    Several may be joined by commas, each with a path after an equals sign if it needs one.
    """
    for part in name.split(","):
        bare = part.partition("=")[0] if "," in name else part
        if bare not in DRAFTERS:
            raise UnknownNameError("drafter", bare, DRAFTERS)


def check_draft_config(config: DraftConfig) -> None:
    """`ConfigError` for names and paths that cannot be meant, before anything is loaded."""
    check_drafter_name(config.method)
    parts = config.method.split(",")
    names = [part.partition("=")[0] for part in parts] if len(parts) > 1 else parts
    paths = [part.partition("=")[2] for part in parts] if len(parts) > 1 else [config.model or ""]
    for name, path in zip(names, paths, strict=True):
        if path and name in WITHOUT_WEIGHTS:
            raise ConfigError(_takes_no_path(name, path))
    if config.model is not None and all(name in WITHOUT_WEIGHTS for name in names):
        raise ConfigError(_takes_no_path(config.method, config.model))
    if config.draft_vocab is not None:
        _check_trimmed(config.method, names)
    for part in parts:
        if parts.count(part) > 1:
            raise ConfigError(f"drafter is {config.method!r}, which names {part} twice; name each drafter once")
    if len(parts) > 1 and "auto" in names:
        others = [part for part, name in zip(parts, names, strict=True) if name not in ("auto", "suffix")]
        raise ConfigError(
            f"drafter is {config.method!r}; auto is suffix (and ngram_lm, where there is a table for the model), drafting only what "
            f"pays, and goes with no other: name {','.join(['suffix', *others])} with policy adaptive (--adaptive)"
        )


def _check_trimmed(method: str, names: list[str]) -> None:
    """`ConfigError` where `draft_vocab` would be left aside."""
    if "eagle3" in names:
        raise ConfigError(
            f"draft_vocab trims the heads of {', '.join(TRIMMED)}; drafter is {method!r}, and eagle3 was trained with a "
            f"vocabulary of its own (the table d2t in its file); leave draft_vocab out"
        )
    if not set(names) & set(TRIMMED):
        raise ConfigError(
            f"draft_vocab trims the heads of {', '.join(TRIMMED)}; drafter is {method!r}, which has none of them; leave "
            f"draft_vocab out"
        )


def _takes_no_path(name: str, path: str) -> str:
    trained = ", ".join(sorted(DRAFTERS.keys() - set(WITHOUT_WEIGHTS) - {"synthetic"}))
    return (
        f"drafter {name} reads no weights, and {path!r} is named for it; leave the path out, or name one of {trained}"
    )


def make_drafter(config: DraftConfig, target: Target) -> Drafter:
    """The drafter that `config.method` names, for this target. Its module is imported only now."""
    check_draft_config(config)
    if "," in config.method:
        return import_module("foreword.draft.cascade").make(config, target, make_drafter)
    return import_module(DRAFTERS[config.method]).make(config, target)
