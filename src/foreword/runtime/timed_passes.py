"""Timed passes: each reads a chain of n nodes after a context, with every node's head and draw, as a speculative step needs."""

import math
import statistics
import time
from collections.abc import Sequence

from foreword.runtime.base import Decoder, Draw, KVCache, Need
from foreword.sampling.params import Warp
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack


def time_passes(
    decoder: Decoder,
    widths: Sequence[int],
    contexts: Sequence[int],
    rounds: tuple[int, int],
    *,
    warm_up: int = 1,
    budget_s: float = math.inf,
) -> dict[tuple[int, int], float]:
    """Median seconds by width and context, interleaved, so that a busy moment hits all of them alike.

    At least the first of `rounds`, then on to the last while the budget lasts; rounds of the warm-up are not counted.
    """
    cache = decoder.new_cache()
    slots = {context: cache.open(context + max(widths)) for context in contexts}
    try:
        for context, slot in slots.items():
            fill(decoder, cache, slot, context)
        times: dict[tuple[int, int], list[float]] = {(n, context): [] for n in widths for context in contexts}
        for _ in range(warm_up):
            for n, context in times:
                _timed(decoder, cache, slots[context], n)
        start_s, done = time.perf_counter(), 0
        while done < rounds[0] or (done < rounds[1] and time.perf_counter() - start_s < budget_s):
            for n, context in times:
                times[n, context].append(_timed(decoder, cache, slots[context], n))
            done += 1
    finally:
        for slot in slots.values():
            cache.close(slot)
    return {key: statistics.median(values) for key, values in times.items()}


def fill(decoder: Decoder, cache: KVCache, slot: int, num_tokens: int, chunk: int = 512) -> None:
    """Read and commit a text of so many tokens, and draw the token after it."""
    token_ids = _token_ids(decoder, num_tokens)
    for start in range(0, num_tokens, chunk):
        part = token_ids[start : start + chunk]
        is_last = start + len(part) == num_tokens
        draws = [Draw(len(part) - 1, Warp(), 0)] if is_last else []
        decoder.forward(pack([DraftTree.chain(part)], [start], [slot]), cache, Need(draws=draws))
        cache.commit(slot, range(len(part)))


def _timed(decoder: Decoder, cache: KVCache, slot: int, num_nodes: int) -> float:
    """Seconds of one pass; nothing is committed, so every pass meets the same context."""
    batch = pack([DraftTree.chain(_token_ids(decoder, num_nodes))], [cache.length(slot)], [slot])
    need = Need(draws=[Draw(n, Warp(), 0) for n in range(num_nodes)])
    start_s = time.perf_counter()
    decoder.forward(batch, cache, need)
    return time.perf_counter() - start_s


def _token_ids(decoder: Decoder, num_tokens: int) -> list[int]:
    """Ids spread over the vocabulary: what they say does not matter here."""
    return [(7919 * i + 13) % decoder.spec.vocab_size for i in range(num_tokens)]
