"""Suffix decoding: what followed the longest earlier occurrences of the text's end, weighted by how often [oliaro24].

Looked up in a suffix tree of the request's own text, which holds its reference too, and, where asked, in one of past
answers. The end of the text is
tried at several lengths: a short suffix has been seen more often, a long one says more. The guess with the most
expected accepted tokens wins; among equals the longer match, then the request's own text. How much is guessed grows
with the match.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.lookup.past_outputs import PastOutputs
from foreword.draft.lookup.suffix_guess import Guess, GuessLimits, guess_after
from foreword.draft.lookup.suffix_tree import Leaf, Node, SuffixTree, Text
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

_Match = tuple[int, "Node | Leaf"]  # length, entry


@dataclass(frozen=True, kw_only=True)
class SuffixOptions(DrafterOptions):
    """How far and how surely to guess, and what past outputs are used."""

    suffix_decoding_max_tree_depth: int = option(
        24, "longest string counted, in tokens; matches are shorter by one", lowest=2, highest=256
    )
    suffix_decoding_max_spec_factor: float = option(4.0, "nodes drafted per token of the match", lowest=0, highest=64)
    suffix_decoding_min_token_prob: float = option(0.1, "less likely nodes are left out", lowest=0, highest=1)
    suffix_decoding_tree: bool = option(True, "several continuations at once; false: the most probable chain")
    suffix_decoding_max_cached_requests: int = option(0, "past outputs kept as a source; 0 for none", lowest=0)
    suffix_decoding_max_cached_tokens: int = option(200_000, "most tokens of past outputs", lowest=1)
    suffix_decoding_file: str | None = option(None, "past outputs are read from this file and added to it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.suffix_decoding_max_cached_requests == 0:
            unused = "suffix_decoding_max_cached_requests is 0, so no past output is used; set it to how many to keep"
            self.refuse_idle("suffix_decoding_file", unused)
            self.refuse_idle("suffix_decoding_max_cached_tokens", unused)


@final
class SuffixDrafter(BaseDrafter):
    """A chain or a small tree of the most probable continuations; deterministic."""

    name = "suffix"
    uses_reference = True

    def __init__(self, options: SuffixOptions, vocab_size: int) -> None:
        self.max_depth = options.suffix_decoding_max_tree_depth
        self.spec_factor = options.suffix_decoding_max_spec_factor
        self.min_prob = options.suffix_decoding_min_token_prob
        self.is_chain = not options.suffix_decoding_tree
        self.past = _past_outputs(options, vocab_size)
        self._requests: dict[int, tuple[SuffixTree, Text]] = {}

    def start(self, request: RequestView) -> None:
        """Begin an empty tree; reference and prompt enter it with the first proposal."""
        self._requests[request.request_id] = (SuffixTree(self.max_depth), Text())

    def stop(self, request: RequestView) -> None:
        """Drop the request's tree; store its answer where past outputs are enabled."""
        is_here = self._requests.pop(request.request_id, None) is not None
        if is_here and self.past is not None and request.is_remembered:
            self.past.add(list(request.token_ids[request.prompt_len :]))

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One tree per request; no draft where nothing matches."""
        return [self._tree(r, plan) for r, plan in zip(requests, plans, strict=True)]

    def _tree(self, request: RequestView, plan: Plan) -> DraftTree:
        known = known_ids(request, plan)
        if plan.num_nodes == 0 or plan.depth == 0:
            return DraftTree.chain(known)
        guess = self._best_guess(request, plan)
        root = len(known) - 1
        return DraftTree(
            [*known, *guess.token_ids],
            [*range(-1, root), *(root + 1 + parent for parent in guess.parents)],
            len(known),
            [*[1.0] * len(known), *guess.probs],
        )

    def _best_guess(self, request: RequestView, plan: Plan) -> Guess:
        tree, text = self._requests[request.request_id]
        if not text.tokens and request.reference_ids:
            tree.extend(Text(), request.reference_ids)
        tree.extend(text, request.token_ids[len(text.tokens) :])
        best, best_score = Guess(), 0.0
        for (match_len, entry), own_text in self._matches(text):
            num_nodes = min(plan.num_nodes, max(1, int(match_len * self.spec_factor)))
            limits = GuessLimits(num_nodes, min(plan.depth, num_nodes), self.min_prob, self.is_chain)
            guess = guess_after(entry, match_len, limits, own_text)
            score = guess.score
            if score > best_score:
                best, best_score = guess, score
        return best

    def _matches(self, text: Text) -> list[tuple[_Match, Sequence[int]]]:
        """Suffixes of the text that occurred before, the longest first, each half as long as the one before."""
        nodes = text.open_nodes
        found: list[tuple[_Match, Sequence[int]]] = [
            ((length, nodes[len(nodes) - 1 - length]), text.tokens) for length in _halves(len(nodes) - 1)
        ]
        if self.past is not None and len(self.past):
            past_tree = self.past.tree
            for length in _halves(past_tree.longest_match(text.tokens[-self.max_depth :])):
                entry = past_tree.find(text.tokens[-length:])
                assert entry is not None, f"a suffix of a match of {length} tokens is a match"
                found.append(((length, entry), ()))
            found.sort(key=lambda match: -match[0][0])
        return found


def _halves(length: int) -> list[int]:
    """The length, half of it, and so on down to 1."""
    lengths = []
    while length > 0:
        lengths.append(length)
        length //= 2
    return lengths


def _past_outputs(options: SuffixOptions, vocab_size: int) -> PastOutputs | None:
    if options.suffix_decoding_max_cached_requests == 0:
        return None
    return PastOutputs(
        options.suffix_decoding_max_tree_depth,
        options.suffix_decoding_max_cached_requests,
        options.suffix_decoding_max_cached_tokens,
        vocab_size,
        None if options.suffix_decoding_file is None else Path(options.suffix_decoding_file),
    )


def make(settings: DrafterSettings, target: Target) -> SuffixDrafter:
    """Needs the size of the vocabulary, to check a file of past outputs."""
    return SuffixDrafter(settings.options, target.spec.vocab_size)


def remembers(options: SuffixOptions) -> bool:
    """Whether past outputs are used."""
    return options.suffix_decoding_max_cached_requests > 0


SUFFIX = DrafterType(
    name="suffix",
    summary="suffix decoding: copies from a suffix tree of prompt and output, several continuations at once, "
    "scored by frequency; past outputs too if asked",
    fits="edits, code, agents: text that repeats itself",
    make=make,
    options=SuffixOptions,
    remembers=remembers,
    variants={"chain": {"suffix_decoding_tree": False}},
)
