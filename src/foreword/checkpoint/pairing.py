"""Do a target and a draft model share a vocabulary, and is drafting with it likely to be faster?

Ids are what a drafter and a target exchange, so the question is whether an id means the same text to both. Three cases:

    same vocabulary        all ids agree, or all but a few special ones; rows of padding on either side do not matter
    same tokens, other ids  the tokens agree, their numbers do not: drafting goes through the text
    another tokenizer      drafting goes through the text

Drafting is lossless in every case: a wrong draft token is rejected. What differs is the acceptance rate.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_FEW = 0.005  # share of ids that may differ: special tokens, a handful of additions


@dataclass(frozen=True)
class Vocabulary:
    """What pairing looks at in one model."""

    source: str  # the model's name for messages
    ids: Mapping[str, int]  # token -> id, added tokens included
    num_parameters: int
    special_tokens: Mapping[str, str]  # role -> token


@dataclass(frozen=True)
class Pairing:
    """The verdict on a pair, explained."""

    is_same_vocabulary: bool
    shared_size: int  # ids below this mean something to both
    num_same: int  # ids that mean the same to both
    num_different: int  # ids that both have and that mean different tokens
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.notes)


def pair(target: Vocabulary, draft: Vocabulary) -> Pairing:
    """Compare two models' vocabularies and sizes."""
    target_tokens, draft_tokens = _by_id(target), _by_id(draft)
    both = target_tokens.keys() & draft_tokens.keys()
    num_same = sum(target_tokens[i] == draft_tokens[i] for i in both)
    num_different = len(both) - num_same
    smaller = max(1, min(len(target_tokens), len(draft_tokens)))
    is_same = len(both) > 0 and num_different <= _FEW * smaller and num_same >= (1 - _FEW) * smaller
    notes = [_vocabulary_note(target, draft, is_same, num_same, num_different)]
    notes += _special_notes(target, draft) if is_same else []
    notes += [_size_note(target, draft)]
    shared_size = min(max(target_tokens, default=-1), max(draft_tokens, default=-1)) + 1
    return Pairing(is_same, shared_size, num_same, num_different, tuple(notes))


def _by_id(vocabulary: Vocabulary) -> dict[int, str]:
    return {index: token for token, index in vocabulary.ids.items()}


def _vocabulary_note(target: Vocabulary, draft: Vocabulary, is_same: bool, num_same: int, num_different: int) -> str:
    sizes = f"{target.source} has {len(target.ids)} tokens, {draft.source} {len(draft.ids)}"
    if is_same and num_different == 0:
        return f"same vocabulary: {sizes}; {num_same} ids mean the same to both"
    if is_same:
        return (
            f"same vocabulary but for {num_different} ids: {sizes}; a draft of one of those is always rejected, "
            f"the rest is as good as ever"
        )
    num_common = len(target.ids.keys() & draft.ids.keys())
    kind = "the same tokens under other ids" if num_common > 0.9 * len(draft.ids) else "another tokenizer"
    return (
        f"{kind}: {sizes}; {num_common} tokens occur in both, {num_same} under the same id. Drafts go through the text "
        f"(decoded, encoded again), which loses some of them; a drafter of the target's family would do better"
    )


def _special_notes(target: Vocabulary, draft: Vocabulary) -> list[str]:
    differing = [
        f"{role} is {target.special_tokens[role]!r} for the target, {draft.special_tokens[role]!r} for the drafter"
        for role in sorted(target.special_tokens.keys() & draft.special_tokens.keys())
        if target.special_tokens[role] != draft.special_tokens[role]
    ]
    return [f"special tokens differ: {'; '.join(differing)}; their drafts may be rejected there"] if differing else []


def _size_note(target: Vocabulary, draft: Vocabulary) -> str:
    ratio = target.num_parameters / max(1, draft.num_parameters)
    small, large = draft.num_parameters / 1e6, target.num_parameters / 1e6
    sizes = f"{small:.3g} M parameters draft for {large:.3g} M (1 to {ratio:.1f})"
    if ratio < 3:
        return f"{sizes}: too close to be faster; every drafted token costs more than {1 / ratio:.0%} of a target pass"
    if ratio < 8:
        return f"{sizes}: faster where most drafts are accepted, with 2 to 4 per step"
    return f"{sizes}: a good ratio; 4 to 8 draft tokens per step"
