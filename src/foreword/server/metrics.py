"""Counters for Prometheus: the names that dashboards of vLLM read, and foreword's own beside them."""

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from foreword.engine.snapshot import EngineSnapshot, HistogramSnapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LABELS = ("model_name", "engine")


def metrics_text(snapshot: EngineSnapshot, model_name: str) -> bytes:
    """The page that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Found([*_vllm(snapshot, model_name), *_own(snapshot, model_name)]))
    return generate_latest(registry)


class _Found(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def _vllm(seen: EngineSnapshot, model: str) -> Iterator[Metric]:
    """As vLLM names them."""
    yield _gauge("vllm:num_requests_running", "Requests in the batch", seen.num_running, model)
    yield _gauge("vllm:num_requests_waiting", "Requests that wait for a place in it", seen.num_waiting, model)
    yield _counter("vllm:prompt_tokens", "Tokens of prompts", seen.prompt_tokens, model)
    yield _counter("vllm:generation_tokens", "Tokens of answers", seen.generated_tokens, model)
    yield _counter("vllm:prefix_cache_queries", "Tokens of prompts that were looked up", seen.prompt_tokens, model)
    yield _counter("vllm:prefix_cache_hits", "Of those, found in the prefix cache", seen.cached_tokens, model)
    yield _counter("vllm:num_preemptions", "Times that a running request had to make way", seen.num_preempted, model)
    finished = CounterMetricFamily(
        "vllm:request_success", "Requests by how they ended", labels=(*_LABELS, "finished_reason")
    )
    for reason, count in seen.finished.items():
        finished.add_metric((model, "0", reason), count)
    yield finished
    drafters = seen.drafters.values()
    depth = max((len(one.accepted_at_depth) for one in drafters), default=0)
    num_drafts = sum(one.drafted_at_depth[0] for one in drafters if one.drafted_at_depth)
    yield _counter("vllm:spec_decode_num_drafts", "Steps with drafts", num_drafts, model)
    yield _counter(
        "vllm:spec_decode_num_draft_tokens", "Drafted tokens", sum(one.drafted_tokens for one in drafters), model
    )
    yield _counter(
        "vllm:spec_decode_num_accepted_tokens",
        "Drafted tokens that were accepted",
        sum(one.accepted_tokens for one in drafters),
        model,
    )
    by_depth = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens that were accepted, by position; 0 is the first",
        labels=(*_LABELS, "position"),
    )
    for position in range(depth):
        count = sum(one.accepted_at_depth[position] for one in drafters if len(one.accepted_at_depth) > position)
        by_depth.add_metric((model, "0", str(position)), count)
    yield by_depth
    yield _histogram(
        "vllm:time_to_first_token_seconds", "From the call to the first token", seen.time_to_first_token, model
    )
    yield _histogram("vllm:inter_token_latency_seconds", "Between tokens", seen.time_between_tokens, model)
    yield _histogram("vllm:request_queue_time_seconds", "From the call to admission", seen.queue_time, model)
    yield _histogram("vllm:e2e_request_latency_seconds", "From the call to the last token", seen.end_to_end, model)


def _own(seen: EngineSnapshot, model: str) -> Iterator[Metric]:
    """What vLLM has no name for."""
    yield _gauge("foreword:kv_cache_bytes", "Keys and values in memory", seen.kv_cache_bytes, model)
    yield _gauge("foreword:prefix_cache_bytes", "Of those, of finished requests", seen.prefix_cache_bytes, model)
    yield _counter(
        "foreword:prefix_cache_evictions",
        "Regions of finished requests that made way",
        seen.prefix_cache_evictions,
        model,
    )
    yield _counter(
        "foreword:prompt_cache_tokens", "Tokens of prompts that came from --prompt-cache", seen.stored_tokens, model
    )
    yield _counter("foreword:steps", "Passes of the target", seen.num_steps, model)
    yield _counter("foreword:draft_seconds", "Time in the drafter", seen.draft_s, model)
    yield _counter("foreword:target_seconds", "Time in the target's passes", seen.target_s, model)
    yield _counter("foreword:step_seconds", "Time in steps", seen.total_s, model)
    yield _gauge(
        "foreword:saved_seconds", "Saved against plain decoding, estimated, by ended requests", seen.saved_s, model
    )
    plans = CounterMetricFamily(
        "foreword:plans", "Requests in passes by why so many tokens were drafted", labels=(*_LABELS, "reason")
    )
    for reason, count in seen.plan_reasons.items():
        plans.add_metric((model, "0", reason), count)
    yield plans
    for name, help_text, counted in (
        ("foreword:drafted_tokens", "Drafted tokens of ended requests by what proposed them", seen.drafted_tokens_by),
        ("foreword:accepted_tokens", "Accepted ones", seen.accepted_tokens_by),
    ):
        family = CounterMetricFamily(name, help_text, labels=(*_LABELS, "drafter"))
        for drafter, count in counted.items():
            family.add_metric((model, "0", drafter), count)
        yield family


def _counter(name: str, text: str, value: float, model: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=_LABELS)
    family.add_metric((model, "0"), value)
    return family


def _gauge(name: str, text: str, value: float, model: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_LABELS)
    family.add_metric((model, "0"), value)
    return family


def _histogram(name: str, text: str, seen: HistogramSnapshot, model: str) -> Metric:
    """Prometheus' buckets are cumulative, ours are not."""
    buckets, total = [], 0
    for bound, count in zip((*(str(bound) for bound in seen.bounds_s), "+Inf"), seen.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family = HistogramMetricFamily(name, text, labels=_LABELS)
    family.add_metric((model, "0"), buckets, seen.total_s)
    return family
