"""Which sequences begin with the same tokens: a trie whose edges are blocks of tokens.

Entries stand at the node of every whole block that they hold, so the deepest node on a prompt's way names those that
share most of it. A lookup costs a dictionary access per block; the last few tokens are compared one by one.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from foreword.tree.shared_beginning import num_shared

BLOCK = 16  # tokens of an edge


class Entry(Protocol):
    """A sequence of tokens that may grow at its end."""

    token_ids: Sequence[int]

    @property
    def num_held(self) -> int:
        """How many of the tokens count."""
        ...


E = TypeVar("E", bound=Entry)


class _Node(Generic[E]):
    def __init__(self, block: tuple[int, ...] = ()) -> None:
        self.block = block
        self.children: dict[tuple[int, ...], _Node[E]] = {}
        self.entries: dict[E, None] = {}  # those that come by, oldest first


class PrefixTree(Generic[E]):
    """Finds the entry that shares the longest beginning with a prompt. Entries are told apart by identity."""

    def __init__(self) -> None:
        self._root: _Node[E] = _Node()
        self._paths: dict[E, list[_Node[E]]] = {}  # the nodes that each entry comes by

    def update(self, entry: E) -> None:
        """Take an entry in, or follow what it holds now. What it held before must be unchanged as far as it is held."""
        path = self._paths.setdefault(entry, [])
        self._root.entries[entry] = None
        num_blocks = entry.num_held // BLOCK
        while len(path) > num_blocks:
            self._leave(entry, path)
        while len(path) < num_blocks:
            block = tuple(entry.token_ids[len(path) * BLOCK : (len(path) + 1) * BLOCK])
            above = path[-1] if path else self._root
            node = above.children.setdefault(block, _Node(block))
            node.entries[entry] = None
            path.append(node)

    def discard(self, entry: E) -> None:
        """Forget an entry, if it was ever taken in."""
        path = self._paths.pop(entry, None)
        if path is None:
            return
        while path:
            self._leave(entry, path)
        del self._root.entries[entry]

    def longest(self, token_ids: Sequence[int], limit: int) -> tuple[list[E], int]:
        """The entries that share the longest beginning with `token_ids[:limit]`, and its length.

        An entry counts as far as it was at its last `update`, rounded down to blocks, and what it holds now of the next one.
        """
        node, length = self._root, 0
        while length + BLOCK <= limit:
            child = node.children.get(tuple(token_ids[length : length + BLOCK]))
            if child is None:
                break
            node, length = child, length + BLOCK
        rest = token_ids[length : min(length + BLOCK, limit)]
        shared = {
            entry: num_shared(entry.token_ids[length : min(length + BLOCK, entry.num_held)], rest)
            for entry in node.entries
        }
        most = max(shared.values(), default=0)
        return [entry for entry, number in shared.items() if number == most], length + most

    def _leave(self, entry: E, path: list[_Node[E]]) -> None:
        node = path.pop()
        del node.entries[entry]
        if not node.entries:
            del (path[-1] if path else self._root).children[node.block]
