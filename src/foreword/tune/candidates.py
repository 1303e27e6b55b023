"""What `foreword tune` tries: every drafter that fits the model as it comes, then other settings of those that do well."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.draft.draft_config import DraftConfig, draft_config
from foreword.draft.drafter_type import DrafterType
from foreword.draft.names import split_list
from foreword.draft.registry import drafter_type, drafter_types
from foreword.errors import ConfigError

PLAIN = "none"
WITH_TABLE = "suffix+ngram_lm"  # what `auto` is where there is a table
_ADAPTIVE_NODES = 16
_LARGEST = 32


@dataclass(frozen=True)
class Candidate:
    """One way to draft."""

    name: str  # as in --drafters
    config: DraftConfig
    policy: str = "fixed"
    num_nodes: int | None = None  # most drafted nodes per step; None: the drafter's own number
    settings: str = ""  # what is not the default, in words

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.name} {self.settings}".rstrip()


def candidate(name: str) -> Candidate:
    """From a name as in --drafters: NAME, NAME=PATH, or several joined by "+", whose trees are merged."""
    if "+" in name.partition("=")[0]:
        config = draft_config(name.replace("+", ",")).with_options(cascade_merge=True)
    else:
        config = draft_config(name)
    return Candidate(name, config, "adaptive" if config.method == "auto" else "fixed")


def parse_candidates(names: str) -> list[Candidate]:
    """Those of a list with commas; plain decoding is measured anyhow."""
    found = [candidate(name) for name in split_list(names) if name not in ("", PLAIN)]
    if not found:
        raise ConfigError(f"--drafters is {names!r}; allowed: names with commas between, such as suffix,ngram")
    if len({c.name for c in found}) < len(found):
        raise ConfigError(f"--drafters is {names!r}: a name occurs twice")
    return found


def default_candidates(fingerprint: str | None, draft_models: Iterable[str]) -> list[Candidate]:
    """All that need no training, trained ones that were made for this model, and the given draft models."""
    tried = [one for one in drafter_types() if one.in_tune]
    untrained = [one for one in tried if not one.takes_path]
    found = [candidate(one.name) for one in untrained] + [merged for one in untrained for merged in _merged(one)]
    for one in tried:
        folder = trained_drafter(one.name, fingerprint) if one.takes_path and fingerprint is not None else None
        if folder is not None:
            found += [*_merged(one), Candidate(one.name, DraftConfig(method=one.name, path=str(folder)))]
    return found + [draft_model(path) for path in draft_models]


def _merged(one: DrafterType) -> list[Candidate]:
    return [candidate(f"{other}+{one.name}") for other in one.merges_with]


def draft_model(path: str) -> Candidate:
    """A draft model, called by the end of its path."""
    return Candidate(f"draft_model={Path(path).name}", DraftConfig(method="draft_model", path=path))


def variants(given: Candidate, num_nodes: int, best_k: int | None = None) -> list[Candidate]:
    """Other settings of one that did well with `num_nodes` a step; `best_k` is what the arithmetic advises for a pair."""
    sizes = {max(1, num_nodes // 2), min(2 * num_nodes, _LARGEST)} | ({best_k} if best_k else set())
    found = [sized(given, size) for size in sorted(sizes - {num_nodes})]
    if given.policy == "adaptive":
        return found
    nodes = max(num_nodes, _ADAPTIVE_NODES)
    found.append(replace(given, policy="adaptive", num_nodes=nodes, settings=f"adaptive, up to {nodes}"))
    for words, options in _other_settings(given.config).items():
        config = given.config.with_options(**options)
        found.append(replace(given, config=config, num_nodes=num_nodes, settings=f"{words}, {num_nodes} nodes"))
    return found


def sized(given: Candidate, num_nodes: int) -> Candidate:
    """The same with another number of nodes."""
    return replace(given, num_nodes=num_nodes, settings=f"{num_nodes} nodes")


def _other_settings(config: DraftConfig) -> Mapping[str, Mapping[str, Any]]:
    """Such as chains instead of trees, or the other way round; of one drafter alone."""
    return drafter_type(config.method).variants if config.cascade is None else {}
