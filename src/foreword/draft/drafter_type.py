"""What is known of a drafter before it is made: its name, what it is for, its traits, its options and how to make it.

A drafter's module ends with one of these, and all else that lists drafters (help, tables, `inspect`, `tune`, `bench`, the
cost estimate) reads it there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from foreword.draft.base import Drafter
from foreword.draft.drafter_options import DrafterOptions
from foreword.sampling.draft_sampling import DraftMode
from foreword.target.target import Target

NOTHING = "nothing"  # what a drafter needs that needs nothing


def _forgets(options: Any) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class DrafterType:
    """One kind of drafter.

    Args:
        name: what the command line calls it.
        summary: what it does, in one line.
        make: builds it beside a target.
        options: its settings.
        needs: what it needs besides the target, in a few words.
        fits: the text or machine that it is good for, in a few words.
        takes: what may follow an equals sign after its name, "PATH" for weights; empty where nothing may.
        drafts: whether it drafts at all.
        runs_model: its guesses take a model's time; False where they are looked up or computed from tables.
        reads_states: it guesses from the target's hidden states of the pass before, so it must have seen that pass.
        reads_whole_text: it reads the whole text for the first guess of a request.
        remembers: of its options, whether it carries over to the next request what it has seen.
        alone: why it goes with no other drafter in a cascade; empty where it does.
        in_tune: `foreword tune` tries it unasked: where it takes a path, if weights were made for the model.
        merges_with: drafters whose trees `tune` tries merged with its own.
        variants: other settings that `tune` tries, by their name in its tables.
    """

    name: str
    summary: str
    make: "Callable[[DrafterSettings, Target], Drafter]"
    options: type[DrafterOptions] = DrafterOptions
    needs: str = NOTHING
    fits: str = "not stated"
    takes: str = ""
    drafts: bool = True
    runs_model: bool = False
    reads_states: bool = False
    reads_whole_text: bool = False
    remembers: Callable[[Any], bool] = _forgets
    alone: str = ""
    in_tune: bool = True
    merges_with: tuple[str, ...] = ()
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def takes_path(self) -> bool:
        """Whether it has weights of its own, which a path may name."""
        return self.takes == "PATH"


@dataclass(frozen=True)
class DrafterSettings:
    """One drafter of a configuration, ready to be made.

    Args:
        type: which.
        options: of the type's own class.
        path: what followed the equals sign, or None.
        draft_mode: whose noise draws guesses.
    """

    type: DrafterType
    options: Any
    path: str | None = None
    draft_mode: DraftMode = DraftMode.SHARED

    @property
    def name(self) -> str:
        """The drafter's."""
        return self.type.name

    def with_mode(self, draft_mode: DraftMode | None) -> "DrafterSettings":
        """The same with another noise; None changes nothing."""
        return self if draft_mode is None else replace(self, draft_mode=draft_mode)
