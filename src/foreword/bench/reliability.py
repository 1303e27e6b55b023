"""Whether the chances that drafters state come true: stated chances in bins, and what became of them.

Judged are the drafted tokens whose parent was kept. A drafter that states no chances is not judged.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from foreword.adapt.acceptance import judged_edges
from foreword.engine.step import StepRecord

NUM_BINS = 10
Bins = list[list[float]]  # of each bin: tokens, sum of their stated chances, how many were kept


def bins_of(records: Iterable[StepRecord]) -> Bins:
    """The drafted tokens of some steps; empty where no chance was stated."""
    bins: Bins = [[0, 0.0, 0] for _ in range(NUM_BINS)]
    for record in records:
        for tree, verdict in zip(record.trees, record.verdicts, strict=True):
            for stated, kept in judged_edges(tree, verdict.path) if tree.accept_probs is not None else ():
                own = bins[min(int(stated * NUM_BINS), NUM_BINS - 1)]
                own[0] += 1
                own[1] += stated
                own[2] += kept
    return bins if any(own[0] for own in bins) else []


def reliability(runs: Sequence[Bins]) -> dict[str, Any] | None:
    """Of several runs together: each bin's tokens, mean stated chance and share kept, and the mean distance of the two."""
    given = [bins for bins in runs if bins]
    if not given:
        return None
    sums = [[sum(values) for values in zip(*own, strict=True)] for own in zip(*given, strict=True)]
    bins = [{"tokens": n, "stated": stated / n, "kept": kept / n} for n, stated, kept in sums if n]
    total = sum(one["tokens"] for one in bins)
    return {"bins": bins, "error": sum(one["tokens"] * abs(one["stated"] - one["kept"]) for one in bins) / total}
