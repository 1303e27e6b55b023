"""The figures of README and performance page are those of the checked-in result, and the page beside it too."""

import json

import pytest

from benchmarks.performance_table import BEGIN, END, PARTS, RESULT, sentence, with_part
from foreword.bench.markdown import markdown
from foreword.bench.report import html_page
from foreword.bench.results import load_result
from foreword.bench.summary import summarise
from tests.support.bench_results import make_result, run_result


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_the_page_agrees_with_the_result(path):
    page = path.read_text(encoding="utf-8")
    data = json.loads(RESULT.read_text(encoding="utf-8"))
    assert with_part(page, PARTS[path](data)) == page, "run python -m benchmarks.performance_table"


def test_the_checked_in_result_is_whole_and_its_figures_are_made_of_its_runs():
    result = load_result(RESULT)
    assert result.is_complete
    data = json.loads(RESULT.read_text(encoding="utf-8"))
    assert data["summary"] == json.loads(json.dumps(summarise(result))), "make it again with foreword bench --render"
    page = RESULT.with_suffix(".html").read_text(encoding="utf-8")
    assert page == html_page(data), "make it again with foreword bench --render"


def test_the_table_goes_between_the_markers():
    result = run_result(make_result("ngram", repeats=1))
    text = with_part(
        f"above\n{BEGIN}\nold\n{END}\nbelow\n", markdown(result.as_json() | {"summary": summarise(result)})
    )
    assert text.startswith(f"above\n{BEGIN}\n")
    assert text.endswith(f"{END}\nbelow\n")
    assert "| `ngram` | yes |" in text
    assert "old" not in text
    with pytest.raises(SystemExit, match="lacks the markers"):
        with_part("no markers", "")


def test_no_figure_without_equal_tokens():
    data = json.loads(RESULT.read_text(encoding="utf-8"))
    assert " times as" in sentence(data)
    auto = next(row for row in data["summary"]["modes"][0]["rows"] if row["label"] == "auto")
    auto["gate"]["status"] = "failed"
    with pytest.raises(SystemExit, match="nothing to report"):
        sentence(data)
