"""The README's table is that of the checked-in result, and the page beside it too."""

import json
from pathlib import Path

import pytest

from benchmarks.readme_table import BEGIN, END, RESULT, with_table
from foreword.bench.report import html_page
from foreword.bench.results import load_result
from foreword.bench.summary import summarise
from tests.support.bench_results import make_result, run_result

ROOT = Path(__file__).parents[2]


def test_the_readme_agrees_with_the_result():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_table(readme) == readme, "run python -m benchmarks.readme_table"


def test_the_checked_in_result_is_whole_and_its_figures_are_made_of_its_runs():
    result = load_result(RESULT)
    assert result.is_complete
    data = json.loads(RESULT.read_text(encoding="utf-8"))
    assert data["summary"] == json.loads(json.dumps(summarise(result))), "make it again with foreword bench --render"
    page = RESULT.with_suffix(".html").read_text(encoding="utf-8")
    assert page == html_page(data), "make it again with foreword bench --render"


def test_the_table_goes_between_the_markers(tmp_path):
    result = run_result(make_result("ngram", repeats=1))
    path = tmp_path / "result.json"
    result.save(path, summary=summarise(result))
    text = with_table(f"above\n{BEGIN}\nold\n{END}\nbelow\n", path)
    assert text.startswith(f"above\n{BEGIN}\n")
    assert text.endswith(f"{END}\nbelow\n")
    assert "| `ngram` | yes |" in text
    assert "old" not in text
    with pytest.raises(SystemExit, match="lacks the markers"):
        with_table("no markers", path)
