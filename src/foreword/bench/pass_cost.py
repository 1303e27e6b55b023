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

from foreword.runtime.base import Decoder
from foreword.runtime.native_threads import default_threads
from foreword.runtime.timed_passes import fill, time_passes

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
    times = time_passes(decoder, widths, [context_len], (repeats, repeats), warm_up=_WARM_UP)
    num_bytes = decoder.num_weight_bytes
    bandwidth = read_bandwidth_gb_per_s(num_bytes, threads)
    return PassCost(
        {n: times[n, context_len] * 1e3 for n in widths},
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
        fill(decoder, cache, slot, num_tokens, chunk)
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
