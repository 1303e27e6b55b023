"""Reliability of stated chances: counted, summarised, shown."""

import pytest

from foreword.bench.reliability import NUM_BINS, bins_of, reliability
from foreword.bench.report_reliability import reliability_multiples
from foreword.bench.summary import summarise
from foreword.draft.base import Plan
from foreword.engine.step import StepRecord
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict
from tests.support.bench_results import make_result, run_result


def record(tree: DraftTree, *path: int) -> StepRecord:
    verdict = Verdict(path, tuple(tree.token_ids[node] for node in path[tree.num_known :]), 0)
    return StepRecord([Plan(1, 8, 8)], [tree], [verdict], tree.num_nodes, [1], False)


TREE = DraftTree([9, 1, 2, 3], [-1, 0, 0, 1], 1, [1.0, 0.6, 0.25, 0.57])


def test_tokens_whose_parent_was_kept_are_counted_by_their_stated_chance():
    bins = bins_of([record(TREE, 0, 1), record(TREE, 0)])
    assert bins[6] == [2, 1.2, 1]
    assert bins[2] == [2, 0.5, 0]
    assert bins[9] == [1, pytest.approx(0.95), 0], "judged only where its parent was kept; given that, 0.57 / 0.6"
    assert sum(own[0] for own in bins) == 5
    assert len(bins) == NUM_BINS


def test_where_no_chance_is_stated_nothing_is_judged():
    assert bins_of([record(DraftTree.chain([9], [1, 2]), 0, 1)]) == []
    assert bins_of([]) == []
    assert reliability([[], []]) is None


def test_runs_go_together():
    bins = bins_of([record(TREE, 0, 1)])
    found = reliability([bins, [], bins])
    assert found is not None
    assert [one["tokens"] for one in found["bins"]] == [2, 2, 2]
    assert found["error"] == pytest.approx((0.4 + 0.25 + 0.95) / 3)


def test_a_benchmark_has_it_by_drafter_and_the_report_shows_it():
    result = run_result(make_result("none", "suffix", "ngram"))
    rows = {row["label"]: row for row in summarise(result)["modes"][0]["rows"]}
    assert rows["none"]["reliability"] is None
    assert rows["suffix"]["reliability"]["bins"]
    shown = reliability_multiples([row for row in rows.values() if row["speedup"]])
    assert shown.count("<svg") == sum(bool(row.get("reliability")) for row in rows.values())
    assert "suffix, mean distance 0." in shown
