"""Costs and gains of a request."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from foreword.engine.step_clock import StepTimes


@dataclass
class RequestStats:
    """Counts and times of one request; units in the names.

    Tokens cut off by a stop condition are never counted as accepted.
    """

    prompt_tokens: int = 0  # tokens of the prompt
    cached_tokens: int = 0  # of the prompt, found in the prefix cache instead of read
    new_tokens: int = 0  # tokens of the answer
    num_steps: int = 0  # target passes after prefill
    drafted_tokens: int = 0  # tokens that were proposed
    accepted_tokens: int = 0  # proposed tokens that were kept, without the extra token of a step
    drafted_at_depth: list[int] = field(default_factory=list)  # steps that drafted at least this deep; [0] is depth 1
    accepted_at_depth: list[int] = field(default_factory=list)  # of them, steps that accepted a node of this depth
    drafted_tokens_by: dict[str, int] = field(default_factory=dict)  # by what proposed them: a drafter, or "grammar"
    accepted_tokens_by: dict[str, int] = field(default_factory=dict)
    saved_s: float | None = None  # estimated against plain decoding; None where the policy does not measure it
    prefill_s: float = 0.0  # from admission to the first token
    decode_s: float = 0.0  # from the first token to the last

    @property
    def tokens_per_step(self) -> float | None:
        """Mean tokens per target pass after prefill (tau in the papers); None without such a pass."""
        return (self.new_tokens - 1) / self.num_steps if self.num_steps else None

    @property
    def decode_tok_per_s(self) -> float | None:
        """Tokens after the first, per second; None where there are none."""
        return (self.new_tokens - 1) / self.decode_s if self.decode_s > 0 and self.new_tokens > 1 else None

    @property
    def accept_rate_at_depth(self) -> list[float]:
        """Share of the steps that drafted to this depth in which a node of this depth was accepted."""
        return [a / d for a, d in zip(self.accepted_at_depth, self.drafted_at_depth, strict=True)]

    def record_step(self, num_drafted: int, max_depth: int, num_accepted: int) -> None:
        """Count one pass after prefill."""
        self.num_steps += 1
        self.drafted_tokens += num_drafted
        self.accepted_tokens += num_accepted
        while len(self.drafted_at_depth) < max_depth:
            self.drafted_at_depth.append(0)
            self.accepted_at_depth.append(0)
        for depth in range(max_depth):
            self.drafted_at_depth[depth] += 1
        for depth in range(num_accepted):
            self.accepted_at_depth[depth] += 1

    def record_sources(self, drafted: Iterable[str], accepted: Iterable[str]) -> None:
        """Count what proposed the tokens of a pass, and those that were kept."""
        for counts, sources in ((self.drafted_tokens_by, drafted), (self.accepted_tokens_by, accepted)):
            for source in sources:
                counts[source] = counts.get(source, 0) + 1

    def copy(self) -> "RequestStats":
        """As it is now."""
        return replace(
            self,
            drafted_at_depth=list(self.drafted_at_depth),
            accepted_at_depth=list(self.accepted_at_depth),
            drafted_tokens_by=dict(self.drafted_tokens_by),
            accepted_tokens_by=dict(self.accepted_tokens_by),
        )


@dataclass
class EngineStats:
    """Where an engine's time was spent, over all steps."""

    num_steps: int = 0
    total_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0

    def add(self, times: StepTimes) -> None:
        """Count a step."""
        self.num_steps += 1
        self.total_s += times.total_s
        self.draft_s += times.drafter_s
        self.target_s += times.target_s

    @property
    def host_s(self) -> float:
        """Time in neither the drafter nor the target: planning, packing, verification, bookkeeping."""
        return self.total_s - self.draft_s - self.target_s
