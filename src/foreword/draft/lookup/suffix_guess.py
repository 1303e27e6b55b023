"""The most frequent continuations of one matched suffix [oliaro24].

After a string seen n times, a token that followed c times is given the chance

    c / (n + 2 / l)        l: tokens of the text that are known to agree with the string, drafted ones included

The second term is the weight of "something new", as the escape count of context-mixing compressors [cleary84]; it
shrinks with the length of the match: what was seen once after one common token is worth a third, after ten of them
five sixths.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.draft.lookup.suffix_tree import Leaf, Node

_NOVELTY = 2.0  # fitted on answers of SmolLM2-135M-Instruct: 1.9 at l = 1, 0.5 at l = 4, 0.2 at l = 8


@dataclass(frozen=True)
class GuessLimits:
    """Limits of a draft."""

    num_nodes: int
    depth: int
    min_prob: float  # nodes less likely than this are left out
    is_chain: bool  # the most probable continuation only


@dataclass(frozen=True)
class Guess:
    """A small tree of continuations; parents are numbers of nodes, -1 for the root."""

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Expected number of accepted tokens."""
        return sum(self.probs)


_Open = tuple[float, int, int, int, "Node | Leaf", int]  # (-prob, order, token, parent, entry, depth)


def guess_after(entry: "Node | Leaf", match_len: int, limits: GuessLimits, own_text: Sequence[int] = ()) -> Guess:
    """The most probable nodes below `entry`, best first.

    Args:
        entry: the suffix's entry in a tree.
        match_len: the suffix's length.
        limits: how much.
        own_text: the text whose suffix it is, where it is in the tree itself: its last tokens are one of the
        occurrences, the one
            that has no continuation yet; and a copy that runs past its end goes on with what it has copied [lz77].
    """
    guess = Guess()
    open_nodes: list[_Open] = []
    _offer(open_nodes, guess, entry, (1.0, -1, match_len, 0), limits, own_text)
    while open_nodes and len(guess.token_ids) < limits.num_nodes:
        negative, _, token, parent, child, depth = heapq.heappop(open_nodes)
        guess.token_ids.append(token)
        guess.parents.append(parent)
        guess.probs.append(-negative)
        if depth < limits.depth:
            node = len(guess.token_ids) - 1
            _offer(open_nodes, guess, child, (-negative, node, match_len + depth, depth), limits, own_text)
    return guess


def _offer(
    open_nodes: list[_Open],
    guess: Guess,
    entry: "Node | Leaf",
    place: tuple[float, int, int, int],
    limits: GuessLimits,
    own_text: Sequence[int],
) -> None:
    """Put the continuations of `entry` that are likely enough among those to choose from."""
    prob, parent, known_len, depth = place
    order = len(open_nodes) + 256 * len(guess.token_ids)  # among equals the first found goes first
    if isinstance(entry, tuple):
        following = _after(entry, guess, parent, own_text)
        share = prob / (1.0 + _NOVELTY / known_len)
        if following is not None and share >= limits.min_prob:
            heapq.heappush(open_nodes, (-share, order, following, parent, (entry[0], entry[1] + 1), depth + 1))
        return
    weight = prob / (entry.count - (1 if own_text and depth == 0 else 0) + _NOVELTY / known_len)
    lowest = limits.min_prob / weight
    best = 0
    for token, child in entry.children.items():
        count = 1 if isinstance(child, tuple) else child.count
        if count >= lowest and (count > best or not limits.is_chain):
            if limits.is_chain and best:
                open_nodes.pop()  # a chain has one open node at most
            best = count
            order += 1
            heapq.heappush(open_nodes, (-count * weight, order, token, parent, child, depth + 1))


def _after(leaf: Leaf, guess: Guess, parent: int, own_text: Sequence[int]) -> int | None:
    """The token after a leaf's; past the end of the request's own text, what the branch has drafted there."""
    text, position = leaf
    if position + 1 < len(text):
        return text[position + 1]
    if text is not own_text:
        return None
    path = []
    while parent >= 0:
        path.append(guess.token_ids[parent])
        parent = guess.parents[parent]
    return path[len(text) - position - 2]  # path is last first; wanted: path[position + 1 - len(text)] from the front
