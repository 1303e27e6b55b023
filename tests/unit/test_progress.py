"""Whoever waits is told: bars where they are wanted, a line now and then where a wait is long, else nothing."""

from pathlib import Path

import pytest

from foreword.checkpoint.cache import sha256_of
from foreword.progress import long_waits, reported, reporting, silent
from foreword.runtime.select import native_problem
from foreword.target.load_model import load_model
from tests.support.tiny_files import GGUF_SIZES, write_gguf
from tests.support.tiny_models import TinyWeights, tiny_spec


def test_what_lies_deep_reports_to_whoever_asked_last():
    outer, inner = [], []
    reported("nobody listens", 1, 2)
    with reporting(lambda *report: outer.append(report)):
        reported("a", 1, 2)
        with reporting(lambda *report: inner.append(report)):
            reported("b", 1, None)
        reported("a", 2, 2)
    reported("nobody listens", 2, 2)
    assert outer == [("a", 1, 2), ("a", 2, 2)]
    assert inner == [("b", 1, None)]
    with reporting(silent) as report:
        assert report is silent


def test_bars_are_drawn_where_they_are_wanted(capsys):
    with reporting(True):
        reported("packing weights", 500, 1000)
    assert "packing weights" in capsys.readouterr().err
    with reporting(True):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("total", "words"), [(2000, "50 % so far"), (None, "0 MB so far")])
def test_elsewhere_only_long_waits_are_told(caplog, total, words):
    now_s = 0.0
    report = long_waits(lambda: now_s)
    told = []
    for second in range(140):
        now_s = float(second)
        report("packing weights", 1000, total)
        if len(caplog.records) > len(told):
            told.append(second)
    report("packing weights", 2000, 2000)
    assert told == [15, 75, 135]
    assert all(record.message == f"packing weights takes a while: {words}" for record in caplog.records)


@pytest.mark.skipif(native_problem() is not None, reason="the native kernels are not there")
def test_packing_is_told_once_and_to_its_end(tmp_path: Path, monkeypatch):
    path = write_gguf(tmp_path / "tiny.gguf", TinyWeights(tiny_spec(**GGUF_SIZES)))
    monkeypatch.setattr("foreword.runtime.native_load._MANY_BYTES", 0)
    monkeypatch.setattr("foreword.checkpoint.cache._MANY_BYTES", 0)
    runs = []
    for _ in range(2):
        reports: list[tuple[str, int, int]] = []
        load_model(
            path, runtime="native", cache_dir=tmp_path / "cache", show_progress=lambda *r, to=reports: to.append(r)
        )
        runs.append(reports)
    first = [report for report in runs[0] if report[0] == "packing weights"]
    done, totals = [report[1] for report in first], [report[2] for report in first]
    assert done == sorted(done)
    assert done[-1] == totals[-1]
    assert all(0.5 * totals[-1] < total < 2 * totals[-1] for total in totals)
    assert {report[0] for report in runs[1]} == {"loading weights"}
    assert sha256_of(path, tmp_path / "other")
