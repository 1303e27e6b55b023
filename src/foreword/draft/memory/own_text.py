"""What the request's own text says of the next token: its suffix tree, read one drafted token at a time.

A place of a draft is known by the entries of the tree that it has reached, one for each of a few lengths of the text's end,
the longest first. The chances of the longest one's continuations count first, and what it leaves to "something new" goes to
the next shorter one, as in compressors [cleary84].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from foreword.draft.lookup.suffix_tree import Leaf, Node, SuffixTree, Text

MAX_DEPTH = 24  # longest string counted
_NOVELTY = 2.0  # weight of something new after one token that agrees: see `lookup.suffix_guess`
_LENGTHS = 3  # of the text's end that are looked at

Match = tuple["Node | Leaf", int]  # entry, tokens in agreement


@dataclass(frozen=True)
class OwnPlace:
    """A place of a draft in its own text."""

    matches: tuple[Match, ...]  # the longest first
    path: tuple[int, ...]  # tokens drafted up to here

    @property
    def length(self) -> int:
        """Tokens that are known to agree."""
        return self.matches[0][1] if self.matches else 0


NOWHERE = OwnPlace((), ())


@final
class OwnText:
    """A text that grows, after its reference, which does not."""

    def __init__(self, reference_ids: Sequence[int] = ()) -> None:
        self._tree, self._text = SuffixTree(MAX_DEPTH), Text()
        if reference_ids:
            self._tree.extend(Text(), reference_ids)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take in what is new of the text."""
        self._tree.extend(self._text, token_ids[len(self._text.tokens) :])

    @property
    def end(self) -> OwnPlace:
        """The place after the text's last token."""
        nodes = self._text.open_nodes
        matches, length = [], len(nodes) - 1
        while length > 0 and len(matches) < _LENGTHS:
            matches.append((nodes[len(nodes) - 1 - length], length))
            length //= 2
        return OwnPlace(tuple(matches), ())

    def after(self, place: OwnPlace) -> dict[int, float]:
        """Tokens that followed there, with their chances."""
        chances: dict[int, float] = {}
        rest = 1.0
        for entry, length in place.matches:
            novelty = _NOVELTY / length
            if isinstance(entry, tuple):
                token = self._next_of(entry, place.path)
                if token is not None:
                    chances[token] = chances.get(token, 0.0) + rest / (1.0 + novelty)
                    rest *= novelty / (1.0 + novelty)
                continue
            total = entry.count - (not place.path) + novelty  # the text's end itself has no continuation yet
            for token, child in entry.children.items():
                count = 1 if isinstance(child, tuple) else child.count
                chances[token] = chances.get(token, 0.0) + rest * count / total
            rest *= novelty / total
        return chances

    def moved(self, place: OwnPlace, token: int) -> OwnPlace:
        """The place after one more drafted token."""
        if not place.matches:
            return NOWHERE
        matches: list[Match] = []
        for entry, length in place.matches:
            if isinstance(entry, tuple):
                if self._next_of(entry, place.path) == token:
                    matches.append(((entry[0], entry[1] + 1), length + 1))
            elif (child := entry.children.get(token)) is not None:
                matches.append((child, length + 1))
        return OwnPlace(tuple(matches), (*place.path, token)) if matches else NOWHERE

    def _next_of(self, leaf: Leaf, path: Sequence[int]) -> int | None:
        """The token after a leaf's; past the end of the text, what the draft has there: a copy of the copy [lz77]."""
        text, position = leaf
        if position + 1 < len(text):
            return text[position + 1]
        beyond = position + 1 - len(text)
        return path[beyond] if text is self._text.tokens and beyond < len(path) else None
