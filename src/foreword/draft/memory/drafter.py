"""Drafts from all that can be looked up, weighed by a model that learns online what each source is worth.

The sources are the request's own text, what followed in earlier answers of this engine, and the n-gram table of the model's
answers where there is one.

What is remembered can only change how fast an answer comes, never its tokens. Only answers are learned, not prompts; a request
may keep its answer out (`DraftingParams.remember`).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.lookup.ngram_lm import table_if_any
from foreword.draft.lookup.ngram_table import NgramTable
from foreword.draft.memory.guesser import Guesser, Place
from foreword.draft.memory.memory import Memory
from foreword.draft.memory.memory_file import SUFFIX, MemoryFile, memory_folder
from foreword.draft.memory.own_text import OwnText
from foreword.draft.memory.store import LEAST_BYTES, LONGEST, MOST_BYTES
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

_LEARN_AFTER = 16  # tokens that are learned together, while their code is in the processor's caches
DEFAULT_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(DrafterOptions):
    """How much is remembered, and where."""

    memory_bytes: int = option(
        DEFAULT_BYTES,
        "size of the memory of earlier answers, rounded down to a power of two",
        lowest=LEAST_BYTES,
        highest=MOST_BYTES,
    )
    memory_file: str | None = option(None, "the memory is read from this file and kept there")
    memory_remember: bool = option(False, "keep the memory in the cache folder, one file a model")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory_file is not None:
            self.refuse_idle("memory_remember", f"the memory is kept in {self.memory_file}")


@dataclass
class _State:
    """Of one request."""

    own_text: OwnText
    num_learned: int  # tokens that the memory has seen, or is not to see
    root: Place | None = None  # of the last draft
    root_len: int = 0  # tokens of the text when it was made


@final
class MemoryDrafter(BaseDrafter):
    """A tree of the likeliest continuations, best first; deterministic for the same history.

    Args:
        memory: shared by all requests.
        table: of the target's answers; None where there is none.
    """

    name = "memory"
    uses_reference = True
    default_num_nodes = 8

    def __init__(self, memory: Memory, table: NgramTable | None) -> None:
        self.memory, self.guesser = memory, Guesser(memory, table)
        self._states: dict[int, _State] = {}

    def start(self, request: RequestView) -> None:
        """Begin an empty tree of its text; reference and prompt enter it with the first draft."""
        self._states[request.request_id] = _State(OwnText(request.reference_ids), len(request.token_ids))

    def stop(self, request: RequestView) -> None:
        """Learn the rest of its answer, and drop its state."""
        state = self._states.pop(request.request_id, None)
        if state is not None:
            self._look_back(request, state)
            self._learn(request, state, 1)
            self.memory.keep()

    def close(self) -> None:
        """Write what was learned, where it is kept in a file."""
        self.memory.close()

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One tree per request; no draft where nothing is likely enough."""
        return [self._tree(request, plan) for request, plan in zip(requests, plans, strict=True)]

    def _tree(self, request: RequestView, plan: Plan) -> DraftTree:
        state, known = self._states[request.request_id], known_ids(request, plan)
        self._look_back(request, state)
        self._learn(request, state, _LEARN_AFTER)
        if plan.num_nodes == 0 or plan.depth == 0:
            return DraftTree.chain(known)
        state.own_text.follow(request.token_ids)
        draft = self.guesser.draft(request.token_ids[-LONGEST:], state.own_text, plan.num_nodes, plan.depth)
        state.root, state.root_len = draft.root, len(request.token_ids)
        root, num_known = len(known) - 1, len(known)
        return DraftTree(
            [*known, *draft.token_ids],
            [*range(-1, root), *(num_known + parent for parent in draft.parents)],
            num_known,
            [*[1.0] * num_known, *draft.chances],
            sources=[*[""] * num_known, *draft.sources] if draft.token_ids else None,
        )

    def _look_back(self, request: RequestView, state: _State) -> None:
        """What became of the last draft."""
        if state.root is not None and request.is_remembered:
            self.guesser.learn(state.root, request.token_ids[state.root_len :])
        state.root = None

    def _learn(self, request: RequestView, state: _State, at_least: int) -> None:
        """Take in what is new of the answer, if it is so many tokens."""
        num_tokens = len(request.token_ids)
        if num_tokens - state.num_learned >= at_least:
            if request.is_remembered:
                self.memory.learn(request.token_ids, state.num_learned)
            state.num_learned = num_tokens


def make(settings: DrafterSettings, target: Target) -> MemoryDrafter:
    """With the table that is installed for the model, if there is one."""
    return make_memory_drafter(settings.options, target)


def make_memory_drafter(options: MemoryOptions, target: Target) -> MemoryDrafter:
    """For a target; its file is read. `ConfigError` where that is not to be used."""
    return MemoryDrafter(
        Memory(options.memory_bytes, target.spec.vocab_size, _file(options, target)), table_if_any(target)
    )


def remembers(options: MemoryOptions) -> bool:
    """Always: that is what it is for."""
    return True


def _file(options: MemoryOptions, target: Target) -> MemoryFile | None:
    if options.memory_file is None and not options.memory_remember:
        return None
    model = _model_key(target)
    place = memory_folder() / f"{model[:32]}{SUFFIX}" if options.memory_file is None else Path(options.memory_file)
    return MemoryFile(place.expanduser(), model)


def _model_key(target: Target) -> str:
    """What names a model in its memory: that of its files, or of name and sizes where it has none."""
    checkpoint = target.model.checkpoint if target.model else None
    fingerprint = getattr(checkpoint, "fingerprint", None)
    named = fingerprint or f"{getattr(checkpoint, 'source', '')} {target.spec}"
    return hashlib.sha256(named.encode()).hexdigest()


MEMORY = DrafterType(
    name="memory",
    summary="drafts from this text, from earlier answers of this engine and from the n-gram table of the model, weighed by a "
    "model that learns online what each source is worth",
    fits="many requests of a kind",
    make=make,
    options=MemoryOptions,
    remembers=remembers,
)
