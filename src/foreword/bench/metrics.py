"""Every reported number, one function each, from raw runs.

Pooled means: tokens of all prompts over seconds of all prompts, each prompt with the median of its repeats. A prompt with a
long answer counts for more, as it does for who waits for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from foreword.bench.intervals import Estimate, ratio_of_rates
from foreword.bench.results import Answer, Run

NGRAM = 4
REPETITIVE = 0.4  # share of repeated 4-grams from which an answer counts as repeating itself


@dataclass(frozen=True)
class Unit:
    """One group of prompts in one cell, its repeats taken together."""

    tokens: float  # emitted by decoding passes
    seconds: float  # so many tokens at the median pace of the repeats


def units_of(runs: Sequence[Run]) -> dict[int, Unit]:
    """By group. Groups in which nothing was decoded (answers of one token) are left out."""
    by_group: dict[int, list[Run]] = {}
    for run in runs:
        if run.decode_tokens > 0 and run.decode_s > 0:
            by_group.setdefault(run.group, []).append(run)
    units = {}
    for group, repeats in by_group.items():
        tokens = median(run.decode_tokens for run in repeats)
        units[group] = Unit(tokens, tokens * median(run.decode_s / run.decode_tokens for run in repeats))
    return units


def same_sample(runs: Sequence[Run], plain: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs of both in which both decoded the same group in the same round: what all figures of a row are made of."""
    keys = [
        {(run.group, run.repeat) for run in side if run.decode_tokens > 0 and run.decode_s > 0}
        for side in (runs, plain)
    ]
    both = keys[0] & keys[1]
    own, base = ([run for run in side if (run.group, run.repeat) in both] for side in (runs, plain))
    return own, base


def tok_per_s(units: dict[int, Unit], groups: Sequence[int]) -> Estimate | None:
    """Pooled decoding speed."""
    chosen = [units[group] for group in groups if group in units]
    if not chosen:
        return None
    return ratio_of_rates([u.tokens for u in chosen], [u.seconds for u in chosen], None, None)


def speedup(units: dict[int, Unit], plain: dict[int, Unit], groups: Sequence[int]) -> Estimate | None:
    """Pooled decoding speed over plain decoding's, on the same groups."""
    both = [(units[group], plain[group]) for group in groups if group in units and group in plain]
    if not both:
        return None
    return ratio_of_rates(
        [u.tokens for u, _ in both],
        [u.seconds for u, _ in both],
        [p.tokens for _, p in both],
        [p.seconds for _, p in both],
    )


def repeated_share(token_ids: Sequence[int], n: int = NGRAM) -> float | None:
    """Share of a text's n-grams that stood in it before; None for a text without one."""
    grams = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return (len(grams) - len(set(grams))) / len(grams) if grams else None


def tokens_per_step(answers: Sequence[Answer]) -> float | None:
    """Mean tokens that a pass after prefill brings to one request (the papers' tau)."""
    steps = sum(answer.steps for answer in answers)
    return sum(max(answer.new_tokens - 1, 0) for answer in answers) / steps if steps else None


def accept_rate_at_depth(answers: Sequence[Answer]) -> list[float]:
    """Share of the steps that drafted to this depth in which a node of this depth was accepted; [0] is depth 1."""
    drafted = sum_at_depth([answer.drafted_at_depth for answer in answers])
    accepted = sum_at_depth([answer.accepted_at_depth for answer in answers])
    return [a / d for a, d in zip(accepted, drafted, strict=True)]


def mean_accept_rate(answers: Sequence[Answer]) -> float | None:
    """Share of all drafted depths that were accepted; of a chain, of its tokens."""
    drafted = sum(sum(answer.drafted_at_depth) for answer in answers)
    return sum(sum(answer.accepted_at_depth) for answer in answers) / drafted if drafted else None


def sum_at_depth(rows: Sequence[Sequence[int]]) -> list[int]:
    """Sums over lists of different lengths."""
    depth = max(map(len, rows), default=0)
    return [sum(row[d] for row in rows if d < len(row)) for d in range(depth)]


def ms_per_token(runs: Sequence[Run]) -> dict[str, float] | None:
    """Milliseconds of a decoded token in the target, in the drafter and in everything else, over all runs."""
    tokens = sum(run.decode_tokens for run in runs)
    if not tokens:
        return None
    target, drafter = sum(run.target_s for run in runs), sum(run.draft_s for run in runs)
    host = sum(run.decode_s for run in runs) - target - drafter
    return {"target": 1e3 * target / tokens, "drafter": 1e3 * drafter / tokens, "host": 1e3 * host / tokens}


def ms_per_pass(runs: Sequence[Run]) -> float | None:
    """Milliseconds from one decoding pass to the next."""
    passes = sum(run.num_passes for run in runs)
    return 1e3 * sum(run.decode_s for run in runs) / passes if passes else None


def nodes_per_pass(runs: Sequence[Run]) -> float | None:
    """Mean width of a decoding pass, all its requests together."""
    passes = sum(run.num_passes for run in runs)
    return sum(run.num_nodes for run in runs) / passes if passes else None


def tokens_per_pass(runs: Sequence[Run]) -> float | None:
    """Mean tokens that a decoding pass brings to all its requests together."""
    passes = sum(run.num_passes for run in runs)
    return sum(run.decode_tokens for run in runs) / passes if passes else None
