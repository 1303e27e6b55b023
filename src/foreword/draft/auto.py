"""The default drafter: what suits the model, under a policy that drafts only where that is faster.

It is `memory`: repeated text of the request itself, what followed in earlier answers of the engine, and the n-gram table of the
model's own answers where there is one. Without a memory no request profits from those before it: `suffix` and, where nothing
repeats, `ngram_lm`. All are cheap to call and return calibrated probabilities.
"""

from dataclasses import dataclass, fields

from foreword.draft.base import Drafter
from foreword.draft.cascade import CascadeDrafter, CascadeOptions
from foreword.draft.drafter_options import DrafterOptions, bounds_of, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.lookup.ngram_lm import NgramLmDrafter, table_if_any
from foreword.draft.lookup.suffix import SuffixDrafter, SuffixOptions
from foreword.draft.lookup.suffix import remembers as suffix_remembers
from foreword.draft.memory.drafter import MemoryOptions, make_memory_drafter
from foreword.target.target import Target

MOST_NODES = 16


@dataclass(frozen=True, kw_only=True)
class AutoOptions(SuffixOptions, CascadeOptions, MemoryOptions):
    """Those of its parts. Settings of `suffix` or of several drafters mean these drafters, without a memory."""

    memory: bool | None = option(
        None,
        "draft from earlier answers too, all sources weighed together; None: unless settings of suffix or a cascade are given",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory:
            for name in self._named(SuffixOptions, CascadeOptions):
                self.refuse_idle(name, "memory is true, which weighs all sources itself")
        elif not self.has_memory:
            for name in self._named(MemoryOptions):
                self.refuse_idle(
                    name,
                    f"there is no memory beside {', '.join(self._named(SuffixOptions, CascadeOptions)) or 'memory false'}",
                )

    @property
    def has_memory(self) -> bool:
        """Whether it is `memory` that drafts."""
        return not self._named(SuffixOptions, CascadeOptions) if self.memory is None else self.memory

    def _named(self, *kinds: type[DrafterOptions]) -> list[str]:
        """The options of some of its parts that are set to something."""
        defaults = {one.name: one.default for one in fields(self)}
        names = {name for kind in kinds for name in bounds_of(kind)}
        return sorted(name for name in names if getattr(self, name) != defaults[name])


def make(settings: DrafterSettings, target: Target) -> Drafter:
    """`memory`; or `suffix`, with `ngram_lm` behind it where there is a table."""
    options: AutoOptions = settings.options
    drafter = make_memory_drafter(options, target) if options.has_memory else _forgetful(options, target)
    drafter.default_num_nodes = MOST_NODES
    return drafter


def remembers(options: AutoOptions) -> bool:
    """Whether a request profits from those before it."""
    return options.has_memory or suffix_remembers(options)


def _forgetful(options: AutoOptions, target: Target) -> SuffixDrafter | CascadeDrafter:
    suffix, table = SuffixDrafter(options, target.spec.vocab_size), table_if_any(target)
    if table is None:
        return suffix
    return CascadeDrafter([suffix, NgramLmDrafter(table)], options.cascade_threshold, options.cascade_merge)


AUTO = DrafterType(
    name="auto",
    summary="`memory`: this text, earlier answers and the n-gram table, where there is one for the model; "
    "chooses the draft length from measured pass times, 0 when speculation would be slower",
    fits="when in doubt: drafts only where that is faster",
    make=make,
    options=AutoOptions,
    remembers=remembers,
    alone="it is memory (this text, earlier answers, and the table where there is one for the model), drafting only what pays; "
    "name the drafters themselves, with policy adaptive (--adaptive)",
)
