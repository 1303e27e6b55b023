"""A second decoder that follows the target's text, with a KV cache of its own.

    the cache holds      t0 t1 t2 t3 x1 x2          x: drafted and read in the step before
    the text is now      t0 t1 t2 t3 x1 e           x1 was accepted, e came from the target
    kept                 t0 t1 t2 t3 x1
    unread               e

What the cache holds is compared with the text at every proposal, so it does not matter how the text came about:
accepted drafts, another drafter's, steps without any. After a full accept the last drafted token was never read, so
two tokens are pending; after ten plain steps, ten are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from foreword.draft.base import RequestView
from foreword.runtime.base import ChainDecoder, Chains, ChainStep, Decoder, KVCache, Need, PassOutput
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from foreword.tree.shared_beginning import num_shared

CHUNK = 512  # most tokens read in one pass while catching up
_LONG = 64  # unread tokens that are worth a pass of their own, or a copy


@dataclass(eq=False)
class _Place:
    """One request's sequence slot and what it holds."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    agreed_len: int = 0  # leading tokens that are known to be the text's
    is_readable: bool = True


@final
class Follower:
    """`DraftReader` over a decoder and a cache of its own.

    Args:
        decoder: the draft model.
        vocab_size: ids that it can read; a text with any other is not drafted for.
    """

    def __init__(self, decoder: Decoder, vocab_size: int) -> None:
        self.decoder, self.vocab_size = decoder, vocab_size
        self.cache: KVCache = decoder.new_cache()
        self._places: dict[int, _Place] = {}

    def start(self, request: RequestView) -> None:
        """Open a sequence slot; nothing is read before the first proposal."""
        self._places[request.request_id] = _Place(self.cache.open(min(len(request.token_ids) + 64, self._context_len)))

    def stop(self, request: RequestView) -> None:
        """Close it."""
        place = self._places.pop(request.request_id, None)
        if place is not None:
            self.cache.close(place.slot)

    def room(self, request: RequestView) -> int:
        """How many tokens may be drafted: up to the draft model's own context end; 0 where it cannot read the text."""
        place = self._places[request.request_id]
        if place.is_readable:
            place.is_readable = all(0 <= token < self.vocab_size for token in request.token_ids[place.agreed_len :])
        return max(0, self._context_len - len(request.token_ids) + 1) if place.is_readable else 0

    def unread(self, request: RequestView) -> list[int]:
        """Forget what is no longer the text, read all but the last chunk of what is new, and return that."""
        return self.follow(request, request.token_ids)

    def follow(self, request: RequestView, text: Sequence[int]) -> list[int]:
        """As `unread`, of a text in the draft model's own tokens."""
        place = self._places[request.request_id]
        if not place.tokens and len(text) > _LONG:
            self._copy_beginning(place, text)
        agreed = min(place.agreed_len, len(text))
        limit = min(len(place.tokens), len(text) - 1)  # the last token is read again, for what follows it
        while agreed < limit and place.tokens[agreed] == text[agreed]:
            agreed += 1
        agreed = min(agreed, limit)
        self.cache.truncate(place.slot, agreed)
        del place.tokens[agreed:]
        place.agreed_len = agreed
        unread = list(text[agreed:])
        while len(unread) > _LONG:
            chunk = unread[: min(CHUNK, len(unread) - 1)]
            unread = unread[len(chunk) :]
            self.run([request], [DraftTree.chain(chunk)], [range(len(chunk))], Need())
        return unread

    def _copy_beginning(self, place: _Place, text: Sequence[int]) -> None:
        """Begin with what another request has read of the same text."""
        others = [other for other in self._places.values() if other is not place]
        lengths = [num_shared(other.tokens[: len(text) - 1], list(text[: len(other.tokens)])) for other in others]
        length = max(lengths, default=0)
        if length > _LONG:
            source = others[lengths.index(length)]
            self.cache.close(place.slot)
            place.slot = self.cache.fork(source.slot, length, len(text) + _LONG)
            place.tokens, place.agreed_len = list(text[:length]), length

    def run(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        keep: Sequence[Sequence[int]],
        need: Need,
    ) -> PassOutput:
        """One pass; keeps the rows `keep` of each request's tree."""
        places = [self._places[request.request_id] for request in requests]
        for place, tree in zip(places, trees, strict=True):
            self.cache.reserve(place.slot, len(place.tokens) + tree.num_nodes)
        batch = pack(trees, [len(place.tokens) for place in places], [place.slot for place in places])
        output = self.decoder.forward(batch, self.cache, need)
        for place, tree, path in zip(places, trees, keep, strict=True):
            self.cache.commit(place.slot, path)
            place.tokens.extend(tree.token_ids[node] for node in path)
        return output

    @property
    def rolls_out(self) -> bool:
        """Whether the draft model drafts whole chains in one call."""
        return isinstance(self.decoder, ChainDecoder)

    def roll_out(self, requests: Sequence[RequestView], chains: Chains) -> list[list[ChainStep]]:
        """Go on with chains; what they read is kept."""
        assert isinstance(self.decoder, ChainDecoder)
        places = [self._places[request.request_id] for request in requests]
        chains = replace(chains, slots=[place.slot for place in places])
        drafted = self.decoder.draft_chains(chains, self.cache)
        for place, first, chain in zip(places, chains.token_ids, drafted, strict=True):
            place.tokens += [first, *(step.token_id for step in chain[:-1])]
        return drafted

    def finish(self, requests: Sequence[RequestView]) -> None:
        """What was read stays; the next proposal sorts it out."""

    @property
    def _context_len(self) -> int:
        return self.decoder.spec.context_len
