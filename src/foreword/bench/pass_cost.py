"""What a pass of n nodes costs, and the least it could cost.

Everything speculation gains on a machine is decided by T(n), the time of one pass over n nodes after a context: every node's head
and draw included, as a speculative step needs them. The floor is the time to read the streamed weights once at the
machine's own read bandwidth, measured with the same threads over as many bytes.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foreword.runtime.base import Decoder, KVCache, Need
from foreword.runtime.native_threads import default_threads
from foreword.sampling.params import Warp
from foreword.sampling.sampler import Draw
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack

_WARM_UP = 3
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class PassCost:
    """Median milliseconds of a pass by width, and its floor."""

    ms_by_width: dict[int, float]
    floor_ms: float
    context_len: int
    bandwidth_gb_per_s: float
    weight_bytes: int


def measure_pass_cost(
    decoder: Decoder, widths: Sequence[int], context_len: int, *, repeats: int = 30, threads: int | None = None
) -> PassCost:
    """Time passes of every width, interleaved, so that a busy moment hits all of them alike."""
    cache = decoder.new_cache()
    slot = cache.open(context_len + max(widths))
    try:
        _fill(decoder, cache, slot, context_len)
        times: dict[int, list[float]] = {n: [] for n in widths}
        for repeat in range(_WARM_UP + repeats):
            for n in widths:
                elapsed_s = _timed_pass(decoder, cache, slot, n)
                if repeat >= _WARM_UP:
                    times[n].append(elapsed_s)
    finally:
        cache.close(slot)
    num_bytes = decoder.num_weight_bytes
    bandwidth = read_bandwidth_gb_per_s(num_bytes, threads)
    return PassCost(
        {n: statistics.median(t) * 1e3 for n, t in times.items()},
        num_bytes / bandwidth / 1e6,
        context_len,
        bandwidth,
        num_bytes,
    )


def measure_prefill(decoder: Decoder, num_tokens: int, chunk: int = 512, repeats: int = 5) -> float:
    """Median seconds to read a prompt of `num_tokens` and draw the first token."""
    cache = decoder.new_cache()
    times = []
    for _ in range(repeats + 1):
        slot = cache.open(num_tokens)
        start_s = time.perf_counter()
        _fill(decoder, cache, slot, num_tokens, chunk)
        times.append(time.perf_counter() - start_s)
        cache.close(slot)
    return statistics.median(times[1:])


def read_bandwidth_gb_per_s(num_bytes: int, threads: int | None = None) -> float:
    """How fast this machine reads `num_bytes` (a megabyte at least), with the given threads."""
    num_bytes = max(num_bytes, _LEAST_BYTES)
    try:
        from foreword_kernels import read_bandwidth  # pyright: ignore[reportMissingImports]
    except ImportError:
        data = torch.ones(num_bytes // 8, dtype=torch.float64)
        return num_bytes / min(_timed_sum(data) for _ in range(7)) / 1e9
    return read_bandwidth(num_bytes, threads or default_threads())


def _timed_sum(data: torch.Tensor) -> float:
    start_s = time.perf_counter()
    data.sum()
    return time.perf_counter() - start_s


def _fill(decoder: Decoder, cache: KVCache, slot: int, num_tokens: int, chunk: int = 512) -> None:
    token_ids = _token_ids(decoder, num_tokens)
    for start in range(0, num_tokens, chunk):
        part = token_ids[start : start + chunk]
        is_last = start + len(part) == num_tokens
        draws = [Draw(len(part) - 1, Warp(), 0)] if is_last else []
        decoder.forward(pack([DraftTree.chain(part)], [start], [slot]), cache, Need(draws=draws))
        cache.commit(slot, range(len(part)))


def _timed_pass(decoder: Decoder, cache: KVCache, slot: int, num_nodes: int) -> float:
    """One pass over a chain; nothing is committed, so every pass meets the same context."""
    batch = pack([DraftTree.chain(_token_ids(decoder, num_nodes))], [cache.length(slot)], [slot])
    need = Need(draws=[Draw(n, Warp(), 0) for n in range(num_nodes)])
    start_s = time.perf_counter()
    decoder.forward(batch, cache, need)
    return time.perf_counter() - start_s


def _token_ids(decoder: Decoder, num_tokens: int) -> list[int]:
    """Ids spread over the vocabulary: what they say does not matter here."""
    return [(7919 * i + 13) % decoder.spec.vocab_size for i in range(num_tokens)]
