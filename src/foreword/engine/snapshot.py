"""What an engine has done, as plain data: for a server's metrics page, a log line, a test."""

from dataclasses import asdict, dataclass, field
from typing import Any

# Upper ends in seconds; a last bucket holds what is longer.
TIME_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip


@dataclass(frozen=True)
class HistogramSnapshot:
    """How often a time fell into which bucket. Counts are per bucket, not cumulative as Prometheus prints them."""

    bounds_s: tuple[float, ...]  # upper ends, ascending
    counts: tuple[int, ...]  # one more than bounds: the last holds what is longer than all of them
    total_s: float  # sum of all times

    @property
    def count(self) -> int:
        """How many times there are."""
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        """None without any."""
        return self.total_s / self.count if self.count else None


@dataclass(frozen=True)
class DraftSnapshot:
    """What one drafter proposed, and what the target accepted of it, since the model was loaded."""

    drafted_tokens: int
    accepted_tokens: int
    drafted_at_depth: tuple[int, ...]  # steps that drafted at least this deep; [0] is depth 1
    accepted_at_depth: tuple[int, ...]


@dataclass(frozen=True)
class EngineSnapshot:
    """Counters and histograms since the model was loaded; they only grow, but for the first four.

    Times are measured from the call: `queue_time` to admission, `time_to_first_token`, `end_to_end` to the last token.
    `time_between_tokens` counts every token after an answer's first: those of one step share its time.
    """

    num_running: int  # requests in the batch
    num_waiting: int  # requests that wait for a place in it
    kv_cache_bytes: int  # of the target's keys and values, kept ones included
    prefix_cache_bytes: int  # of these, regions of finished requests
    num_steps: int  # passes of the target
    prompt_tokens: int  # of requests that were admitted
    cached_tokens: int  # of those, found in the prefix cache instead of read
    stored_tokens: int  # of these, loaded from the folder of `prompt_cache`
    generated_tokens: int
    prefix_cache_queries: int  # requests that looked for their prompt's beginning
    prefix_cache_hits: int  # those that found some of it
    prefix_cache_evictions: int  # regions of finished requests that had to make way
    num_preempted: int  # times that a running request had to, and was read again later
    finished: dict[str, int]  # requests by reason: stop, length, abort, timeout, error
    drafters: dict[str, DraftSnapshot]  # by the drafter's name
    queue_time: HistogramSnapshot
    time_to_first_token: HistogramSnapshot
    time_between_tokens: HistogramSnapshot
    end_to_end: HistogramSnapshot
    draft_s: float = field(default=0.0)  # time in the drafter
    target_s: float = field(default=0.0)  # time in the target's passes
    total_s: float = field(default=0.0)  # time in steps
    # Of requests that have ended: seconds saved against plain decoding, as the adaptive policy estimates them (they may
    # fall), and tokens by what proposed them: the members of a cascade, or "grammar".
    saved_s: float = field(default=0.0)
    drafted_tokens_by: dict[str, int] = field(default_factory=dict)
    accepted_tokens_by: dict[str, int] = field(default_factory=dict)
    # Why so many tokens were drafted, of every request in every pass: reasons of the policy without their figures.
    plan_reasons: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Nested dictionaries, lists and numbers, as `json.dumps` takes them."""
        return asdict(self)
