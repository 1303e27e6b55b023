"""A suffix tree with counts: how often each token followed each short string of tokens.

    text  a b a c a b        root ─ a (3) ─ b (2) ─ a c a b ...      counts in brackets; what was seen once is a leaf:
                             │       └─── c a b                      a place in the text, where the rest stands
                             ├ b (2) ─ a c a b
                             └ c a b

A string becomes a node only when it is seen a second time, so a text of n tokens takes about n entries, not n times the
depth. Adding a token costs one look-up for each suffix that has occurred before, at most `max_depth`. A text can be
taken out again exactly: each of its strings is counted down, so memory can be bounded by dropping the oldest
[oliaro24].
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


class Node:
    """A string that occurs more than once (or did, before a text was taken out)."""

    __slots__ = ("children", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self.children: dict[int, Node | Leaf] = {}


Leaf = tuple[list[int], int]  # (text, position of the string's last token): it occurs here and nowhere else


@dataclass(eq=False)
class Text:
    """A text in a tree; the last one may grow.

    `open_nodes` are the nodes of those of its suffixes that occur elsewhere too, longest first, the root last: suffix
    lengths len(open_nodes) - 1 down to 0.
    """

    tokens: list[int] = field(default_factory=list)
    open_nodes: list[Node] = field(default_factory=list)


class SuffixTree:
    """Counts of all strings of up to `max_depth` tokens of several texts."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.root = Node(0)
        self.num_tokens = 0
        self._growing: Text | None = None

    def extend(self, text: Text, token_ids: Iterable[int]) -> None:
        """Let `text` grow. One text grows at a time: once the next one has begun, those before it are complete."""
        if not text.tokens:
            self._growing = text
        assert text is self._growing, "a text of this tree cannot grow once another has begun"
        tokens, open_nodes = text.tokens, text.open_nodes or [self.root]
        len_before = len(tokens)
        for token in token_ids:
            position = len(tokens)
            tokens.append(token)
            moved = []
            for node in open_nodes:
                child = node.children.get(token)
                if child is None:
                    node.children[token] = (tokens, position)
                    continue
                if isinstance(child, tuple):
                    child = node.children[token] = _expand(child)
                child.count += 1
                moved.append(child)
            if len(moved) >= self.max_depth:
                moved.pop(0).children.clear()  # as deep as the tree goes: counted, not followed further
            moved.append(self.root)
            open_nodes = moved
        self.num_tokens += len(tokens) - len_before
        text.open_nodes = open_nodes

    def remove(self, text: Text) -> None:
        """Take a whole text out: as if it had never been there, but that no two nodes are joined again."""
        tokens = text.tokens
        for start in range(len(tokens)):
            node = self.root
            for token in tokens[start : start + self.max_depth]:
                child = node.children[token]
                if isinstance(child, tuple) or child.count == 1:
                    del node.children[token]  # nothing else goes through here
                    break
                child.count -= 1
                node = child
        self.num_tokens -= len(tokens)

    def find(self, token_ids: Sequence[int]) -> "Node | Leaf | None":
        """The entry of a string; None where it does not occur. No longer than `max_depth - 1`."""
        entry: Node | Leaf = self.root
        for index, token in enumerate(token_ids):
            if isinstance(entry, tuple):
                text, position = entry
                return (text, position + len(token_ids) - index) if _goes_on(entry, token_ids[index:]) else None
            child = entry.children.get(token)
            if child is None:
                return None
            entry = child
        return entry

    def longest_match(self, token_ids: Sequence[int]) -> int:
        """Length of the longest suffix of `token_ids` that occurs, below `max_depth`; all shorter ones occur too."""
        low, high = 0, min(len(token_ids), self.max_depth - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self.find(token_ids[-middle:]) is None:
                high = middle - 1
            else:
                low = middle
        return low


def _expand(leaf: Leaf) -> Node:
    """The node of a string that has occurred once: its one child is what follows there."""
    text, position = leaf
    node = Node(1)
    if position + 1 < len(text):
        node.children[text[position + 1]] = (text, position + 1)
    return node


def _goes_on(leaf: Leaf, token_ids: Sequence[int]) -> bool:
    text, position = leaf
    return text[position + 1 : position + 1 + len(token_ids)] == list(token_ids)
