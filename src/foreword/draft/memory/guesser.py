"""Grows a draft from all sources together, and learns from what came instead.

At each place of the draft the sources name tokens; the mixer says how likely each is. The likeliest open token anywhere is drafted
next, until the plan is full or none is likely enough. What was weighed is kept until the answer has gone on, for then every place
that the answer came through tells hit or miss, whether its tokens were read or not.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.draft.lookup.ngram_table import NgramTable
from foreword.draft.memory.mixer import CELL_BITS, CELLS, MEMORY_2, OWN_TEXT, TABLE, Mixer
from foreword.draft.memory.own_text import OwnPlace, OwnText
from foreword.draft.memory.store import LONGEST, ORDERS, MemoryStore, context_hashes

LEAST = 0.1  # least chance of being reached: nodes below cost more than they gain, on every machine that was measured
_LEAST_SHARE = 0.02  # of a place's tokens, those that are less likely are not weighed
_MOST_SUM = 0.99  # of the chances of a place's tokens together
_NAMES = ("memory", "memory", "memory", "memory", "suffix", "ngram_lm")  # of the sources, for `DraftTree.sources`


@dataclass(frozen=True)
class Weighed:
    """One token at one place."""

    evidence: tuple[int, ...]
    chance: float


@dataclass
class Place:
    """One place of a draft: what was weighed there, and the places after it."""

    which: int  # set of the mixer's weights
    weighed: dict[int, Weighed]
    after: dict[int, "Place"] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """Drafted tokens, parents by number, -1 for the root; their chances of being reached; who names each first."""

    root: Place
    token_ids: list[int]
    parents: list[int]
    chances: list[float]
    sources: list[str]


@dataclass(frozen=True)
class _Spot:
    """Where a draft may go on."""

    last_ids: list[int]
    own: OwnPlace
    depth: int
    node: int


class Guesser:
    """The sources that all requests share.

    Args:
        store: what was learned of earlier answers.
        mixer: how the sources are weighed.
        table: of the model's answers; None where there is none.
    """

    def __init__(self, store: MemoryStore, mixer: Mixer, table: NgramTable | None) -> None:
        self.store, self.mixer, self.table = store, mixer, table

    def draft(self, last_ids: Sequence[int], own_text: OwnText, num_nodes: int, depth: int) -> Draft:
        """The likeliest tokens after `last_ids`, at most `num_nodes` and `depth` in a row."""
        spot = _Spot(list(last_ids[-LONGEST:]), own_text.end, 0, -1)
        place = self._weigh(spot, own_text)
        draft = Draft(place, [], [], [], [])
        open_tokens: list[tuple[float, int, int, _Spot, Place]] = []
        reached, order = 1.0, 0
        while True:
            if spot.depth < depth:
                for token, weighed in place.weighed.items():
                    if (chance := reached * weighed.chance) >= LEAST:
                        order += 1
                        heapq.heappush(open_tokens, (-chance, order, token, spot, place))
            if not open_tokens or len(draft.token_ids) == num_nodes:
                return draft
            negative, _, token, before, parent = heapq.heappop(open_tokens)
            reached = -negative
            spot = _Spot(
                [*before.last_ids[1 - LONGEST :], token],
                own_text.moved(before.own, token),
                before.depth + 1,
                len(draft.token_ids),
            )
            draft.token_ids.append(token)
            draft.parents.append(before.node)
            draft.chances.append(reached)
            draft.sources.append(_NAMES[self._first_source(parent.weighed[token].evidence)])
            if len(draft.token_ids) < num_nodes:
                place = parent.after[token] = self._weigh(spot, own_text)

    def learn(self, root: Place, token_ids: Sequence[int]) -> None:
        """The answer went on with these tokens after a draft's root."""
        place: Place | None = root
        learn = self.mixer.learn
        for token in token_ids:
            if place is None:
                return
            for guess, weighed in place.weighed.items():
                learn(place.which, weighed.evidence, weighed.chance, guess == token)
            place = place.after.get(token)

    def _weigh(self, spot: _Spot, own_text: OwnText) -> Place:
        """The tokens that any source names, the chances of all of them together below 1."""
        named = [one for one in self._named(spot, own_text) if one[1]]
        longest = max((MEMORY_2 - source + 1 for source, _ in named if source <= MEMORY_2), default=0)
        which = 2 * longest + any(source == OWN_TEXT for source, _ in named)
        tokens = {token for _, cells in named for token in cells}
        chance, weighed, total = self.mixer.chance, {}, 0.0
        for token in tokens:
            evidence = tuple([cells.get(token, source << CELL_BITS) for source, cells in named])
            share = chance(which, evidence)
            if share >= _LEAST_SHARE:
                weighed[token] = Weighed(evidence, share)
                total += share
        if total > _MOST_SUM:
            weighed = {token: Weighed(w.evidence, w.chance * _MOST_SUM / total) for token, w in weighed.items()}
        return Place(which, weighed)

    def _named(self, spot: _Spot, own_text: OwnText) -> list[tuple[int, dict[int, int]]]:
        """Of each source, the cells of the tokens that it names."""
        after, named = self.store.after, []
        for order, hashed in enumerate(context_hashes(spot.last_ids)):
            found = after(hashed)
            source = MEMORY_2 - order
            first = (source << CELL_BITS) + 1
            if len(found) == 1:
                ((token, strength),) = found
                named.append((source, {token: first + 16 + min(strength // 17, 14)}))
            elif found:
                named.append((source, {token: first + strength // 17 for token, strength in found}))
        if spot.own.matches:
            length = spot.own.length
            first = (OWN_TEXT << CELL_BITS) + 1 + 7 * (0 if length < 2 else 1 if length < 4 else 2 if length < 8 else 3)
            shares = own_text.after(spot.own)
            named.append((OWN_TEXT, {token: first + min(int(share * 7), 6) for token, share in shares.items()}))
        if self.table is not None:
            first = (TABLE << CELL_BITS) + 1
            found = self.table.after(spot.last_ids)
            named.append((TABLE, {token: first + min(int(share * 31), 30) for token, share in found}))
        return named

    def _first_source(self, evidence: tuple[int, ...]) -> int:
        """The source whose word weighs most."""
        naming = [cell for cell in evidence if cell & CELLS - 1]
        return max(naming, key=self.mixer.log_odds) >> CELL_BITS


__all__ = ["ORDERS", "Draft", "Guesser", "Place"]
