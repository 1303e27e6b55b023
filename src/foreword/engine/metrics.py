"""Counting what an engine does, in its own thread; a microsecond or two per request and step."""

import functools
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from foreword.engine.kv_memory import KVMemory
from foreword.engine.request import Request
from foreword.engine.snapshot import TIME_BUCKETS_S, DraftSnapshot, EngineSnapshot, HistogramSnapshot
from foreword.engine.stats import EngineStats, RequestStats
from foreword.engine.step import StepRecord

_FIGURES = re.compile(r"\d+(?:\.\d+)?%?")


class Histogram:
    """Counts of times by fixed buckets."""

    def __init__(self) -> None:
        self._counts = [0] * (len(TIME_BUCKETS_S) + 1)
        self._total_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a time, or several equal ones."""
        self._counts[bisect_left(TIME_BUCKETS_S, seconds)] += times
        self._total_s += seconds * times

    def snapshot(self) -> HistogramSnapshot:
        """As it is now."""
        return HistogramSnapshot(TIME_BUCKETS_S, tuple(self._counts), self._total_s)


class EngineMetrics:
    """Written by the engine's thread alone. Others may take a snapshot: numbers that only grow, each by itself right."""

    def __init__(self) -> None:
        self.num_started = 0  # admitted
        self.num_unstarted = 0  # ended before they were admitted
        self.num_steps = 0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.stored_tokens = 0
        self.prefix_cache_queries = self.prefix_cache_hits = 0
        self.prefix_cache_evictions = self.num_preempted = 0
        self.kv_cache_bytes = self.prefix_cache_bytes = 0
        self.finished: Counter[str] = Counter()
        self.drafters: dict[str, RequestStats] = {}  # their counts alone
        self.drafted_by: Counter[str] = Counter()  # tokens of ended requests by what proposed them
        self.accepted_by: Counter[str] = Counter()
        self.plan_reasons: Counter[str] = Counter()  # of every request in every pass
        self.saved_s = 0.0  # of ended requests
        self.queue_time, self.time_to_first_token = Histogram(), Histogram()
        self.time_between_tokens, self.end_to_end = Histogram(), Histogram()
        self._last_s: dict[int, float] = {}  # when each running request got its last tokens

    def started(self, request: Request) -> None:
        """A request was admitted."""
        self.num_started += 1
        self.queue_time.add(request.start_s - request.arrived_s)
        self.prompt_tokens += request.prompt_len
        self.cached_tokens += request.stats.cached_tokens
        self.prefix_cache_queries += 1
        self.prefix_cache_hits += request.stats.cached_tokens > 0

    def loaded(self, request: Request, had: int) -> None:
        """A request that was admitted with `had` cached tokens got more from the disk."""
        self.cached_tokens += request.stats.cached_tokens - had
        self.stored_tokens += request.stats.cached_tokens - had
        self.prefix_cache_hits += had == 0 and request.stats.cached_tokens > 0

    def stepped(self, requests: Sequence[Request], record: StepRecord) -> None:
        """A pass was run for these requests."""
        self.num_steps += 1
        now_s = time.perf_counter()
        for index, (request, kept) in enumerate(zip(requests, record.num_emitted, strict=True)):
            tree = record.trees[index]
            self.plan_reasons[reason_kind(record.plans[index].reason)] += 1
            if tree.num_drafted:
                depth = max(tree.depths) - tree.num_known + 1
                accepted = min(kept, record.verdicts[index].num_accepted)
                self._drafter(record.plans[index].drafter).record_step(tree.num_drafted, depth, accepted)
            if not kept:
                continue
            self.generated_tokens += kept
            last_s = self._last_s.get(request.request_id)
            self._last_s[request.request_id] = now_s
            if last_s is None:
                self.time_to_first_token.add(now_s - request.arrived_s)
                kept -= 1  # more with the first one came at once
                last_s = now_s
            if kept:
                self.time_between_tokens.add((now_s - last_s) / kept, kept)

    def holds(self, memory: KVMemory) -> None:
        """What is held between two passes."""
        self.kv_cache_bytes, self.prefix_cache_bytes = memory.num_bytes, memory.prefixes.num_bytes
        self.prefix_cache_evictions, self.num_preempted = memory.prefixes.num_evicted, memory.num_preempted

    def ended(self, request: Request, has_started: bool = True) -> None:
        """A request ended, however it did."""
        self.num_unstarted += not has_started
        self._last_s.pop(request.request_id, None)
        self.finished["error" if request.error is not None else str(request.finish_reason)] += 1
        self.end_to_end.add(time.perf_counter() - request.arrived_s)
        self.drafted_by.update(request.stats.drafted_tokens_by)
        self.accepted_by.update(request.stats.accepted_tokens_by)
        self.saved_s += request.stats.saved_s or 0.0

    def dropped(self, num_requests: int) -> None:
        """Requests that were never made: their caller went away, or was told of an error."""
        if num_requests:
            self.num_unstarted += num_requests
            self.finished["abort"] += num_requests

    def snapshot(self, num_submitted: int, num_running: int, stats: EngineStats) -> EngineSnapshot:
        """As it is now, of `num_submitted` requests."""
        return EngineSnapshot(
            num_running=num_running,
            num_waiting=max(num_submitted - self.num_started - self.num_unstarted, 0),
            kv_cache_bytes=self.kv_cache_bytes,
            prefix_cache_bytes=self.prefix_cache_bytes,
            num_steps=self.num_steps,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            stored_tokens=self.stored_tokens,
            generated_tokens=self.generated_tokens,
            prefix_cache_queries=self.prefix_cache_queries,
            prefix_cache_hits=self.prefix_cache_hits,
            prefix_cache_evictions=self.prefix_cache_evictions,
            num_preempted=self.num_preempted,
            finished=dict(self.finished),
            drafters={name: _draft_snapshot(counts) for name, counts in list(self.drafters.items())},
            queue_time=self.queue_time.snapshot(),
            time_to_first_token=self.time_to_first_token.snapshot(),
            time_between_tokens=self.time_between_tokens.snapshot(),
            end_to_end=self.end_to_end.snapshot(),
            draft_s=stats.draft_s,
            target_s=stats.target_s,
            total_s=stats.total_s,
            saved_s=self.saved_s,
            drafted_tokens_by=dict(self.drafted_by),
            accepted_tokens_by=dict(self.accepted_by),
            plan_reasons=dict(self.plan_reasons),
        )

    def _drafter(self, name: str) -> RequestStats:
        counts = self.drafters.get(name)
        if counts is None:
            counts = self.drafters[name] = RequestStats()
        return counts


@functools.lru_cache(1024)
def reason_kind(reason: str) -> str:
    """A plan's reason without its figures, and without what it says of later steps: there are a dozen of these."""
    return _FIGURES.sub("N", reason.partition(";")[0]) or "none given"


def _draft_snapshot(counts: RequestStats) -> DraftSnapshot:
    depths = tuple(counts.drafted_at_depth), tuple(counts.accepted_at_depth)
    return DraftSnapshot(counts.drafted_tokens, counts.accepted_tokens, *depths)
