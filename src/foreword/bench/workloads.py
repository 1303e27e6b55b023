"""What is asked: prompts with their categories, and a fixed subset that treats categories alike.

The subset is a pure function of the prompts' ids: within a group they are ranked by the SHA-256 of their id, and the
groups take turns, in the order in which they first appear, until enough are chosen. So 60 of them contain the
30, and another machine chooses the same.

Spec-Bench counts the eight topics of MT-bench as one of its six tasks [specbench24]; so do we where both are there.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from foreword.errors import ConfigError

NO_CATEGORY = "prompts"
MT_BENCH = "mt_bench"
MT_BENCH_TOPICS = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)  # [mtbench23]


@dataclass(frozen=True)
class BenchPrompt:
    """One prompt, ready to run."""

    id: str
    category: str
    token_ids: tuple[int, ...]
    reference: str | None = None  # a text to draft from, where the file names one

    @property
    def sha256(self) -> str:
        """Of the token ids: two engines that were asked the same have the same."""
        return ids_sha256(self.token_ids)


def ids_sha256(token_ids: Iterable[int]) -> str:
    """A name for a sequence of token ids: SHA-256 of them in decimal, with commas between."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def merge_topics(categories: Sequence[str | None]) -> list[str]:
    """Categories as they are reported: MT-bench's topics as one where there are others beside them."""
    named = [category or NO_CATEGORY for category in categories]
    has_others = any(category not in MT_BENCH_TOPICS for category in named)
    return [MT_BENCH if has_others and category in MT_BENCH_TOPICS else category for category in named]


def stratified(ids: Sequence[str], categories: Sequence[str], count: int) -> list[int]:
    """Which prompts are in the fixed subset, as indices in file order; all where there are no more than `count`."""
    if count < 1:
        raise ConfigError(f"the subset has {count} prompts; allowed: 1 or above")
    groups: dict[str, list[int]] = {}
    for index, category in enumerate(categories):
        groups.setdefault(category, []).append(index)
    for group in groups.values():
        group.sort(key=lambda index: hashlib.sha256(ids[index].encode()).hexdigest())
    chosen: list[int] = []
    for turn in range(max(map(len, groups.values()))):
        chosen += [group[turn] for group in groups.values() if turn < len(group)]
    return sorted(chosen[:count])


def check_ids(prompts: Sequence[BenchPrompt]) -> None:
    """Raise `ConfigError` where two prompts share a name: their figures could not be told apart."""
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ConfigError(f"two prompts have the id {prompt.id!r}; ids must differ over all files")
        seen.add(prompt.id)


class HasCategory(Protocol):
    """Anything with a category."""

    @property
    def category(self) -> str:
        """What it is reported under."""
        ...


def in_groups(prompts: Sequence[HasCategory], size: int) -> list[list[int]]:
    """Prompts that run side by side, as indices: of one category each, so that every group has a category."""
    by_category: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_category.setdefault(prompt.category, []).append(index)
    return [indices[start : start + size] for indices in by_category.values() for start in range(0, len(indices), size)]
