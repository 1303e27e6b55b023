"""What `foreword tune` tries: every drafter that fits the model as it comes, then other settings of those that do well."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.config import DraftConfig, draft_config
from foreword.draft.registry import check_draft_config
from foreword.errors import ConfigError

PLAIN = "none"
UNTRAINED = ("auto", "suffix", "ngram", "recycling", "lookahead", "suffix+recycling")
WITH_TABLE = "suffix+ngram_lm"
_TRAINED = ("ngram_lm", "eagle3", "eagle2", "eagle", "medusa")
_ADAPTIVE_NODES = 16
_LARGEST = 32


@dataclass(frozen=True)
class Candidate:
    """One way to draft."""

    name: str  # as in --drafters
    config: DraftConfig
    policy: str = "fixed"
    num_nodes: int | None = None  # most drafted nodes a step; None: the drafter's own number
    settings: str = ""  # what is not the default, in words

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.name} {self.settings}".rstrip()


def candidate(name: str) -> Candidate:
    """From a name as in --drafters: NAME, NAME=PATH, or several joined by "+", whose trees are merged."""
    if "+" in name.partition("=")[0]:
        config = replace(draft_config(name.replace("+", ",")), cascade_merge=True)
    else:
        config = draft_config(name)
    check_draft_config(config)
    return Candidate(name, config, "adaptive" if config.method == "auto" else "fixed")


def parse_candidates(names: str) -> list[Candidate]:
    """Those of a list with commas; plain decoding is measured anyhow."""
    found = [candidate(name.strip()) for name in names.split(",") if name.strip() not in ("", PLAIN)]
    if not found:
        raise ConfigError(f"--drafters is {names!r}; allowed: names with commas between, such as suffix,ngram")
    if len({c.name for c in found}) < len(found):
        raise ConfigError(f"--drafters is {names!r}: a name stands there twice")
    return found


def default_candidates(fingerprint: str | None, draft_models: Iterable[str]) -> list[Candidate]:
    """All that need no training, trained ones that were made for this model, and the given draft models."""
    found = [candidate(name) for name in UNTRAINED]
    for method in _TRAINED:
        folder = None if fingerprint is None else trained_drafter(method, fingerprint)
        if folder is not None:
            found += [candidate(WITH_TABLE)] if method == "ngram_lm" else []
            found.append(Candidate(method, DraftConfig(method=method, model=str(folder))))
    return found + [draft_model(path) for path in draft_models]


def draft_model(path: str) -> Candidate:
    """A draft model, called by the end of its path."""
    return Candidate(f"draft_model={Path(path).name}", DraftConfig(method="draft_model", model=path))


def variants(given: Candidate, num_nodes: int, best_k: int | None = None) -> list[Candidate]:
    """Other settings of one that did well with `num_nodes` a step; `best_k` is what the arithmetic advises for a pair."""
    sizes = {max(1, num_nodes // 2), min(2 * num_nodes, _LARGEST)} | ({best_k} if best_k else set())
    found = [sized(given, size) for size in sorted(sizes - {num_nodes})]
    if given.policy == "adaptive":
        return found
    nodes = max(num_nodes, _ADAPTIVE_NODES)
    found.append(replace(given, policy="adaptive", num_nodes=nodes, settings=f"adaptive, up to {nodes}"))
    for config, words in _other_trees(given.config):
        found.append(replace(given, config=config, num_nodes=num_nodes, settings=f"{words}, {num_nodes} nodes"))
    return found


def sized(given: Candidate, num_nodes: int) -> Candidate:
    """The same with another number of nodes."""
    return replace(given, num_nodes=num_nodes, settings=f"{num_nodes} nodes")


def _other_trees(config: DraftConfig) -> Sequence[tuple[DraftConfig, str]]:
    """Chains instead of trees and the other way round, where a method has both."""
    if config.method == "suffix":
        return [(replace(config, suffix_decoding_tree=False), "chain")]
    if config.method in ("eagle2", "eagle3"):
        return [(replace(config, draft_tree_width=1), "chain")]
    if config.method == "draft_model":
        return [(replace(config, draft_tree_width=2), "width 2")]
    return []
