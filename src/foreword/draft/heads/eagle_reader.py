"""What an EAGLE layer reads: pairs of a feature and the token after it, with a cache of its own.

    position                 0       1       2       3            4
    token                    t0      t1      t2      t3 = root
    target's feature         f0      f1      f2
    the layer reads       (f0,t1) (f1,t2) (f2,t3)  (s2,x)       (s3,y)      x, y: drafted; s: the layer's own output
    and guesses              t2      t3      x       y            ...

Rows of the cache that stay come from the target's features alone. `observe` collects those of each committed path; the
next proposal reads them with the tokens that followed, and its last output gives the first guesses. What is rolled out
from there stands on states of the layer's own and is taken back when the proposal is made.

One layer looks at what is near. So of a prompt, and of what went by while nothing was drafted, the last `WINDOW` pairs are
read (up to twice as many where more have waited) and the layer starts again with them: 2 or 3 % fewer tokens per step than after
all of it, and a first guess costs the same after a thousand tokens as after fifty. It also begins anew where passes went by
unseen: only distances count, not positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import RequestView
from foreword.draft.heads.eagle_fusion import Fusion
from foreword.runtime.base import ChainDecoder, Chains, ChainStep, Decoder, KVCache, Need, PassOutput
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import PackedBatch, pack
from foreword.verify.verdict import Verdict

WINDOW = 64
_FEW = 32  # nodes of a pass whose features may all be held for the sake of some


@dataclass(frozen=True, eq=False)
class _Piece:
    """Features of a committed path, still among those of its pass: while drafting is off this is all that a step costs."""

    features: Tensor  # (nodes, ...) of the whole pass
    start: int
    path: Sequence[int]

    def rows(self) -> Float[Tensor, "n width"]:
        """The path's features alone."""
        rows = _rows(self.features, self.start, self.path)
        return rows.flatten(1)


@dataclass(eq=False)
class _Place:
    """One request's sequence slot and the pairs that are pending."""

    slot: int
    num_seen: int = 0  # positions whose feature came by, or that were left out
    num_read: int = 0  # positions whose pairs were read, or left out
    num_rows: int = 0  # pairs in the cache
    features: list["Tensor | _Piece"] = field(default_factory=list)  # of positions [num_read, num_seen)
    first: int = 0  # in the last pass: the row of its first node that may be read again
    num_known: int = 0  # such nodes


@final
class EagleReader:
    """`DraftReader` over an EAGLE layer.

    Args:
        decoder: the layer (or layers) with embedding and head.
        fusion: how a feature and a token become its input.
        norms_state: the state it goes on from is its final norm's output, not the stream before.
    """

    def __init__(self, decoder: Decoder, fusion: Fusion, norms_state: bool = False) -> None:
        self.decoder, self.fusion = decoder, fusion
        self.cache: KVCache = decoder.new_cache()
        self._state_need = Need(hidden=True) if norms_state else Need(taps=(decoder.spec.num_layers,))
        self._places: dict[int, _Place] = {}
        self._last: tuple[Tensor, Tensor] | None = None  # inputs and states of a proposal's last pass

    def start(self, request: RequestView) -> None:
        """Open a region."""
        self._places[request.request_id] = _Place(self.cache.open(min(4 * WINDOW, self._context_len)))

    def stop(self, request: RequestView) -> None:
        """Close it."""
        place = self._places.pop(request.request_id, None)
        if place is not None:
            self.cache.close(place.slot)

    def observe(
        self,
        requests: Sequence[RequestView],
        verdicts: Sequence[Verdict],
        batch: PackedBatch,
        features: Float[Tensor, "nodes ..."],
    ) -> None:
        """Keep the features of what was committed."""
        for request, verdict, start, kv_len in zip(requests, verdicts, batch.starts, batch.kv_lens, strict=False):
            place = self._places.get(request.request_id)
            num_new = request.kv_len - kv_len
            if place is None or num_new == 0:
                continue
            first = max(0, num_new - self._window)  # a prompt
            if kv_len + first != place.num_seen:
                self._begin_anew(place, kv_len + first)
            piece = _Piece(features, start, verdict.path[first:num_new])
            place.features.append(piece if len(features) <= _FEW else piece.rows())
            place.num_seen = request.kv_len
            self._make_room(place)

    def _begin_anew(self, place: _Place, position: int) -> None:
        """Forget what was read and kept; the features from a position on are those that come next."""
        self.cache.truncate(place.slot, 0)
        place.num_seen = place.num_read = position
        place.num_rows, place.features = 0, []

    def _make_room(self, place: _Place) -> None:
        """Leave out what has waited long, and all that was read before it, or what the layer's context has no room for."""
        num_unread = place.num_seen - place.num_read
        if num_unread > 2 * self._window or place.num_rows + num_unread > self._context_len - self._window:
            kept, num_seen = _read(place.features)[-self._window :].clone(), place.num_seen
            self._begin_anew(place, num_seen - len(kept))
            place.features, place.num_seen = [kept], num_seen

    def room(self, request: RequestView) -> int:
        """How many tokens may be drafted: up to the layer's own context end; 0 where the features do not reach."""
        place = self._places[request.request_id]
        if not place.features or place.num_seen != len(request.token_ids) - 1:
            return 0
        return max(0, self._context_len - place.num_rows - (place.num_seen - place.num_read) + 1)

    def unread(self, request: RequestView) -> list[int]:
        """The tokens of the pairs that wait; the root is the last."""
        self.finish([request])  # a proposal that was broken off leaves nothing behind
        return list(request.token_ids[self._places[request.request_id].num_read + 1 :])

    def run(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        keep: Sequence[Sequence[int]],
        need: Need,
    ) -> PassOutput:
        """One pass over one tree per request: the first of a proposal over the pairs that wait, the others over guesses."""
        places = [self._places[request.request_id] for request in requests]
        is_first = self._last is None
        inputs = self._first_inputs(places, trees) if is_first else self._next_inputs(places, trees)
        output = self._forward(places, trees, inputs, replace(need, **_asked(self._state_need)))
        states = output.hidden if output.taps is None else output.taps[:, 0]
        assert states is not None, "the states were asked for"
        self._last = inputs, states
        start = 0
        for place, tree, path in zip(places, trees, keep, strict=True):
            num_kept = len(path)  # always the leading nodes
            self.cache.commit(place.slot, path)
            if is_first:
                place.num_read += num_kept
                place.num_rows += num_kept
                place.features = [rest] if len(rest := _read(place.features)[num_kept:]) else []
            place.first, place.num_known = start + num_kept, tree.num_nodes - num_kept
            start += tree.num_nodes
        return output

    @property
    def rolls_out(self) -> bool:
        """Whether the layer drafts whole chains in one call: its own state must be its next input as it is."""
        return self.fusion.keeps_states and isinstance(self.decoder, ChainDecoder)

    def roll_out(self, requests: Sequence[RequestView], chains: Chains) -> list[list[ChainStep]]:
        """Go on with chains from the last pass's states; their rows are kept until `finish`."""
        assert self._last is not None
        assert isinstance(self.decoder, ChainDecoder)
        places = [self._places[request.request_id] for request in requests]
        # Each request's tree was kept whole, so its last row is the one before the rows that may be read again.
        states = _joined([self._last[1][place.first - 1 : place.first] for place in places])
        carries = "hidden" if self._state_need.hidden else "stream"
        chains = replace(chains, slots=[place.slot for place in places], carries=carries)
        return self.decoder.draft_chains(chains, self.cache, states)

    def finish(self, requests: Sequence[RequestView]) -> None:
        """Take back what stands on the layer's own states."""
        self._last = None
        for request in requests:
            place = self._places[request.request_id]
            self.cache.truncate(place.slot, place.num_rows)

    @property
    def _context_len(self) -> int:
        return self.decoder.spec.context_len

    @property
    def _window(self) -> int:
        return max(1, min(WINDOW, self._context_len // 4))

    def _first_inputs(self, places: Sequence[_Place], trees: Sequence[DraftTree]) -> Float[Tensor, "nodes hidden"]:
        features = [_read(place.features) for place in places]
        for place, rows in zip(places, features, strict=True):
            place.features = [rows]  # `run` takes from it what it keeps
        return self.fusion.begin(_joined(features), [token for tree in trees for token in tree.token_ids])

    def _next_inputs(self, places: Sequence[_Place], trees: Sequence[DraftTree]) -> Float[Tensor, "nodes hidden"]:
        """What was read before as it was, and the new nodes with the states of their parents."""
        assert self._last is not None
        inputs, states = self._last
        rows, token_ids = [], []
        for place, tree in zip(places, trees, strict=True):  # the parent of a new first node is the last kept one
            rows.extend(place.first + tree.parents[node] for node in range(place.num_known, tree.num_nodes))
            token_ids.extend(tree.token_ids[place.num_known :])
        new = self.fusion.go_on(states[torch.tensor(rows, device=states.device)], token_ids)
        pieces, start = [], 0
        for place, tree in zip(places, trees, strict=True):
            end = start + tree.num_nodes - place.num_known
            pieces += [inputs[place.first : place.first + place.num_known], new[start:end]]
            start = end
        return _joined([piece for piece in pieces if len(piece)])

    def _forward(
        self, places: Sequence[_Place], trees: Sequence[DraftTree], inputs: Float[Tensor, "nodes hidden"], need: Need
    ) -> PassOutput:
        slots = [place.slot for place in places]
        kv_lens = [self.cache.length(slot) for slot in slots]
        for slot, kv_len, tree in zip(slots, kv_lens, trees, strict=True):
            self.cache.reserve(slot, kv_len + tree.num_nodes)
        return self.decoder.forward(pack(trees, kv_lens, slots), self.cache, need, inputs)


def _asked(need: Need) -> dict[str, object]:
    return {"hidden": True} if need.hidden else {"taps": need.taps}


def _rows(features: Float[Tensor, "nodes ..."], start: int, path: Sequence[int]) -> Float[Tensor, "n ..."]:
    """A copy of a path's rows."""
    first, end = start + path[0], start + path[-1] + 1
    if end - first == len(path):
        return features[first:end].clone()
    return features[torch.tensor([start + node for node in path], device=features.device)]


def _read(pieces: Sequence[Tensor | _Piece]) -> Float[Tensor, "n width"]:
    return _joined([piece.rows() if isinstance(piece, _Piece) else piece for piece in pieces])


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(tuple(pieces))
