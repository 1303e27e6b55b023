"""Grows a draft from all sources together, and learns from what came instead.

At each place of the draft the sources name tokens; the mixer says how likely each is. The likeliest open token anywhere is drafted
next, until the plan is full or none is likely enough. What was weighed is kept until the answer has gone on, for then every place
that the answer came through tells hit or miss, whether its tokens were read or not.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.draft.lookup.ngram_table import NgramTable
from foreword.draft.memory.memory import Memory
from foreword.draft.memory.mixer import CELL_BITS, CELLS, MEMORY_2, OWN_TEXT, TABLE
from foreword.draft.memory.own_text import OwnPlace, OwnText
from foreword.draft.memory.store import LONGEST, context_hashes

LEAST = 0.1  # least chance of being reached: nodes below cost more than they gain, on every machine that was measured
_LEAST_TO_GO_ON = 0.15  # of being reached, to look at what comes after: it would have to be nearly certain
_MOST_ORDERS = 3  # contexts of the memory that are heard, the longest ones
_LEAST_SHARE = 0.02  # of a place's tokens, those that are less likely are not weighed
_NAMING = (
    1,
    1,
    1,
    1,
    4,
    8,
)  # by source: how many contexts of the memory name a token, the own text, the table make its set of weights
_MOST_SUM = 0.99  # of the chances of a place's tokens together
_NAMES = ("memory", "memory", "memory", "memory", "suffix", "ngram_lm")  # of the sources, for `DraftTree.sources`


@dataclass(slots=True)
class Place:
    """One place of a draft: what was weighed there, and the places after it."""

    weighed: dict[int, tuple[float, int, list[int]]]  # by token: its chance, the mixer's set of weights, the evidence
    after: dict[int, "Place"] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """Drafted tokens, parents by number, -1 for the root; their chances of being reached; who names each first."""

    root: Place
    token_ids: list[int]
    parents: list[int]
    chances: list[float]
    sources: list[str]


_Open = tuple[
    float, int, int, int, "Place", list[int], OwnPlace, int
]  # -chance, order, token, parent node, its place, ...


class Guesser:
    """The sources that all requests share.

    Args:
        memory: what was learned of earlier answers, and how the sources are weighed.
        table: of the model's answers; None where there is none.
    """

    def __init__(self, memory: Memory, table: NgramTable | None) -> None:
        self.memory, self.table = memory, table

    def draft(self, last_ids: Sequence[int], own_text: OwnText, num_nodes: int, depth: int) -> Draft:
        """The likeliest tokens after `last_ids`, at most `num_nodes` and `depth` in a row."""
        ids, own, place_depth, node = list(last_ids[-LONGEST:]), own_text.end, 0, -1
        place: Place | None = self._weigh(ids, own_text, own)
        draft = Draft(place, [], [], [], [])
        open_tokens: list[_Open] = []
        reached, order = 1.0, 0
        while True:
            if place is not None and place_depth < depth:
                for token, (share, _, _) in place.weighed.items():
                    if (chance := reached * share) >= LEAST:
                        order += 1
                        heapq.heappush(open_tokens, (-chance, order, token, node, place, ids, own, place_depth))
            if not open_tokens or len(draft.token_ids) == num_nodes:
                return draft
            negative, _, token, parent, before, ids, own, place_depth = heapq.heappop(open_tokens)
            reached, node, place_depth, place = -negative, len(draft.token_ids), place_depth + 1, None
            draft.token_ids.append(token)
            draft.parents.append(parent)
            draft.chances.append(reached)
            draft.sources.append(_NAMES[self._first_source(before.weighed[token][2])])
            if reached >= _LEAST_TO_GO_ON and len(draft.token_ids) < num_nodes:
                ids, own = [*ids[1 - LONGEST :], token], own_text.moved(own, token)
                place = before.after[token] = self._weigh(ids, own_text, own)

    def learn(self, root: Place, token_ids: Sequence[int]) -> None:
        """The answer went on with these tokens after a draft's root."""
        place: Place | None = root
        learn = self.memory.mixer.learn
        for token in token_ids:
            if place is None:
                return
            for guess, (chance, which, evidence) in place.weighed.items():
                learn(which, evidence, chance, guess == token)
            place = place.after.get(token)

    def _weigh(self, last_ids: Sequence[int], own_text: OwnText, own: OwnPlace) -> Place:
        """The tokens that any source names, the chances of all of them together below 1."""
        named = self._named(last_ids, own_text, own)
        known = [source << CELL_BITS for source, _ in named]
        evidences: dict[int, list[int]] = {}
        naming: dict[int, int] = {}
        for index, (source, cells) in enumerate(named):
            one = _NAMING[source]
            for token, cell in cells:
                if token not in evidences:
                    evidences[token], naming[token] = known.copy(), 0
                evidences[token][index] = cell
                naming[token] += one
        chance, weighed, total = self.memory.mixer.chance, {}, 0.0
        for token, evidence in evidences.items():
            which = naming[token]
            share = chance(which, evidence)
            if share >= _LEAST_SHARE:
                weighed[token] = (share, which, evidence)
                total += share
        if total > _MOST_SUM:
            scale = _MOST_SUM / total
            weighed = {token: (share * scale, which, evidence) for token, (share, which, evidence) in weighed.items()}
        return Place(weighed)

    def _named(
        self, last_ids: Sequence[int], own_text: OwnText, own: OwnPlace
    ) -> list[tuple[int, list[tuple[int, int]]]]:
        """Of each source that knows the place, its tokens, each with its cell."""
        after, named = self.memory.store.after, []
        hashes = context_hashes(last_ids)
        for order in range(len(hashes) - 1, -1, -1):
            if found := after(hashes[order]):
                source = MEMORY_2 - order
                first = (source << CELL_BITS) + (17 if len(found) == 1 else 1)
                named.append((source, [(token, first + (strength * 15 >> 8)) for token, strength in found]))
                if len(named) == _MOST_ORDERS:
                    break
        if own.matches:
            length = own.length
            first = (OWN_TEXT << CELL_BITS) + (1 if length < 2 else 8 if length < 4 else 15 if length < 8 else 22)
            shares = own_text.after(own)
            named.append((OWN_TEXT, [(token, first + int(share * 6.99)) for token, share in shares.items()]))
        if self.table is not None and (table := self.table.after(last_ids)):
            first = (TABLE << CELL_BITS) + 1
            named.append((TABLE, [(token, first + int(share * 30)) for token, share in table]))
        return named

    def _first_source(self, evidence: Sequence[int]) -> int:
        """The source whose word weighs most."""
        naming = [cell for cell in evidence if cell & CELLS - 1]
        return max(naming, key=self.memory.mixer.log_odds) >> CELL_BITS
