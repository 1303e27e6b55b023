"""The figures of README and performance page are those of the checked-in result, and the page beside it too."""

import json
import subprocess

import pytest

from benchmarks.performance_table import BEGIN, END, PARTS, RESULT, sentence, with_part
from foreword.bench.markdown import markdown
from foreword.bench.provenance import source_commit
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


def test_the_checked_in_result_was_measured_from_a_commit():
    found = json.loads(RESULT.read_text(encoding="utf-8"))["provenance"]
    assert found["is_dirty"] is False
    assert "dirty" not in found["commit"]


def test_a_result_says_which_commit_it_is_of_and_whether_files_differ(tmp_path):
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    assert source_commit(tmp_path / "nowhere") == (None, None)
    git("init")
    assert source_commit(tmp_path) == (None, None)
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    commit, is_dirty = source_commit(tmp_path)
    assert (len(commit), is_dirty) == (10, False)
    (tmp_path / "other").write_text("what git does not track is no source")
    assert source_commit(tmp_path) == (commit, False)
    (tmp_path / "file").write_text("two")
    assert source_commit(tmp_path) == (commit, True)


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
