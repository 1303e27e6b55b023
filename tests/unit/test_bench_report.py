"""What is shown of a benchmark: the page is whole and stands alone, tables agree, rivals only where they are comparable."""

import re
from html.parser import HTMLParser

import pytest

from foreword.bench.intervals import TOO_LITTLE
from foreword.bench.markdown import markdown
from foreword.bench.peers import bits_of, merge_peers, prompts_for_peers
from foreword.bench.report import html_page
from foreword.bench.summary import summarise
from foreword.cli.render.bench_table import print_summary
from foreword.errors import ConfigError
from tests.support.bench_results import PROMPTS, make_result, planted, run_result, write_comparison

VOID = {"meta", "link", "br", "rect", "path", "circle", "polyline"}


class Page(HTMLParser):
    """Every tag closes the one that it opened; collects what matters."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def result():
    """Two modes, a failed drafter, a lossy rule."""
    return run_result(
        make_result("ngram", "suffix", temperatures=(0.0, 0.8), verifiers=("match", "typical"), repeats=1), make=planted
    )


def data_of(result):
    return result.as_json() | {"summary": summarise(result)}


@pytest.fixture(scope="module")
def page(result):
    return Page(html_page(data_of(result)))


def test_the_page_is_whole_and_needs_nothing_else(page, result):
    text = html_page(data_of(result))
    assert text.startswith("<!doctype html>")
    assert not re.search(r"https?://|//cdn|@import|url\(", text.replace("http://www.w3.org", ""))
    names = [tag for tag, _ in page.tags]
    assert "script" not in names
    assert "img" not in names
    links = [attrs for tag, attrs in page.tags if tag == "link"]
    assert [link["href"] for link in links] == ["data:,"], "an empty icon, or browsers ask for one"
    assert "prefers-color-scheme: dark" in text


def test_what_a_file_says_is_shown_and_never_run(page):
    assert "a/1 <b>" in page.text
    assert "chat & more" in page.text


def test_pictures_say_in_words_what_they_show(page):
    pictures = [attrs for _, attrs in page.tags if attrs.get("role") == "img"]
    assert len(pictures) > 8
    assert all(re.search(r"\d", attrs["aria-label"]) for attrs in pictures)


def test_every_row_is_shown_once_in_each_mode_and_failures_have_no_figure(page, result):
    for mode in summarise(result)["modes"]:
        for row in mode["rows"]:
            assert row["label"] in page.text
    assert "failed the gate" in page.text
    assert "No figure: " in page.text
    assert not any(attrs.get("aria-label", "").startswith("ngram: ") and "times plain" in attrs["aria-label"] for _, attrs in page.tags)  # fmt: skip
    assert any(attrs.get("aria-label", "").startswith("suffix: ") for _, attrs in page.tags)


def test_without_a_winner_the_page_says_so():
    result = run_result(make_result("ngram", repeats=1), make=planted)
    text = Page(html_page(data_of(result))).text
    assert "No drafter passed the gate here" in text


def test_an_unfinished_result_is_marked(result):
    data = data_of(result) | {"is_complete": False}
    assert "was stopped before its end" in Page(html_page(data)).text


def test_markdown_is_a_table_with_the_same_figures(result):
    data = data_of(result)
    text = markdown(data)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1, "all rows of a table have its columns"
    (suffix,) = [line for line in rows if line.startswith("| `suffix` ")][:1]
    assert f"{data['summary']['modes'][0]['rows'][2]['speedup']['value']:.2f} (" in suffix
    failed = next(line for line in rows if line.startswith("| `ngram` "))
    assert "**NO**" in failed
    assert not re.search(r"\d\.\d", failed)


# --- other engines


def test_rivals_with_the_same_prompts_are_merged(tmp_path):
    result = run_result(make_result("ngram", repeats=1))
    result.peers = merge_peers(result, *write_comparison(tmp_path))
    (row,) = result.peers
    assert (row["engine"], row["bits"], row["num_rounds"]) == ("llama.cpp", 8, 1)
    assert row["tok_per_s"]["value"] == pytest.approx(40 / 1.0)
    assert row["by_category"]["code"]["value"] == pytest.approx(20 / 0.7)
    assert row["repeated_4grams"] == pytest.approx(5 / 6)
    data = data_of(result)
    found = data["summary"]["against_rivals"]
    own = data["summary"]["modes"][0]["rows"][1]["tok_per_s"]["value"]
    assert found["label"] == "ngram"
    assert found["any"] == found["8_bits_or_more"]
    assert found["any"]["times"] == pytest.approx(own / 40)
    assert "llama.cpp/q8_0/plain" in Page(html_page(data)).text
    assert "| llama.cpp/q8_0/plain | 40" in markdown(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"max_new": 64}}, "most new tokens is 64 there and 12 here"),
        ({"settings": {"threads": 1}}, "threads is 1 there and 2 here"),
        ({"cpu": "Another"}, "processor is 'Another' there"),
    ],
)
def test_rivals_under_other_conditions_are_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        merge_peers(make_result("ngram"), *write_comparison(tmp_path, **changes))


def test_rivals_that_were_asked_something_else_are_refused(tmp_path):
    comparison, prompts = write_comparison(tmp_path)
    prompts.write_text(prompts.read_text().replace("[7, 3]", "[7, 4]"))
    with pytest.raises(ConfigError, match="lacks 1 of our 4 prompts with the same token ids, the first is 'b/2'"):
        merge_peers(make_result("ngram"), comparison, prompts)
    prompts.write_text(prompts_for_peers(PROMPTS))  # other names: then the comparison has no answers to them
    with pytest.raises(ConfigError, match=r"llama.cpp/q8_0/plain did not answer 4 of our prompts"):
        merge_peers(make_result("ngram"), comparison, prompts)
    comparison.write_text("[]")
    with pytest.raises(ConfigError, match="is no comparison of peers"):
        merge_peers(make_result("ngram"), comparison, prompts)


def test_bits_of_a_precision():
    assert [bits_of(name) for name in ("bf16", "q8_0", "int4", "full")] == [16, 8, 4, None]


@pytest.mark.parametrize(
    ("low", "high", "verdict", "headline"),
    [
        (1.1, 1.4, "faster", "the speed of plain decoding with ngram, and not a token changed"),
        (0.7, 0.9, "slower", "nothing is faster here, ngram loses least"),
        (0.9, 1.4, TOO_LITTLE, "with ngram: too little to tell whether it is faster"),
    ],
)
def test_what_may_be_chance_is_called_so_everywhere(capsys, low, high, verdict, headline):
    data = data_of(run_result(make_result("ngram", repeats=1)))
    (row,) = (row for row in data["summary"]["modes"][0]["rows"] if not row["is_baseline"])
    row["speedup"], row["verdict"] = {"value": (low + high) / 2, "low": low, "high": high}, verdict
    data["summary"]["modes"][0]["best"] = "ngram"
    print_summary(data)
    shown = (Page(html_page(data)).text, markdown(data), capsys.readouterr().out)
    assert headline in " ".join(shown[0].split())
    assert [TOO_LITTLE in text for text in shown] == [verdict == TOO_LITTLE] * 3
    assert data["summary"]["modes"][0]["rows"][0]["verdict"] is None, "plain decoding against itself"


def test_a_benchmark_that_was_stopped_has_rows_of_one_sample():
    """Plain decoding went through all prompts twice, the drafter through two once: all its figures are of those two."""
    result = run_result(make_result("ngram", repeats=2))
    (index,) = (i for i, cell in enumerate(result.cells) if not cell.is_baseline)
    result.runs = [run for run in result.runs if run.cell != index or (run.repeat == 0 and run.group < 2)]
    for run in result.runs:  # the rounds that the drafter did not see were slow
        run.decode_s = 1.0 if run.repeat == 0 and run.group < 2 else 9.0
    (row,) = (row for row in summarise(result)["modes"][0]["rows"] if not row["is_baseline"])
    own = [run for run in result.runs if run.cell == index]
    plain = [run for run in result.runs if run.cell != index and (run.repeat, run.group) in {(0, 0), (0, 1)}]
    tokens, passes = sum(run.decode_tokens for run in own), sum(run.num_passes for run in own)
    assert row["tok_per_s"]["value"] == pytest.approx(tokens / 2.0)
    assert row["speedup"]["value"] == pytest.approx(tokens / sum(run.decode_tokens for run in plain))
    assert row["step_cost"] == pytest.approx((2.0 / passes) / (2.0 / sum(run.num_passes for run in plain)))
