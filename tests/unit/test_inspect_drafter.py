"""`foreword inspect DRAFTER --model TARGET`: what it is, whether it fits and why not, what it gains."""

import json

import pytest

from foreword.bench.drafter_facts import drafter_kind
from foreword.cli.main import main
from tests.support.medusa_heads import legacy_names, random_heads, save_heads
from tests.support.tiny_llm import VOCAB_SIZE
from tests.support.tiny_models import tiny_spec

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture
def inspect(files, capsys):
    def run(path, *options, code=0):
        assert main(["inspect", str(path), "--model", str(files.target), "--runtime", "torch", *options]) == code
        return capsys.readouterr().out

    return run


def test_kinds_are_told_from_the_files(files, tmp_path):
    paths = (files.medusa, files.eagle, files.eagle3, files.draft, files.ngram_lm)
    assert [drafter_kind(str(path)) for path in paths] == ["medusa", "eagle2", "eagle3", None, "ngram_lm"]
    assert drafter_kind(str(tmp_path / "heads.pt")) is None
    (tmp_path / "heads.pt").touch()
    assert drafter_kind(str(tmp_path / "heads.pt")) == "medusa"
    assert drafter_kind(str(tmp_path)) is None


def test_medusa_heads_are_described_tried_and_measured(files, inspect):
    facts = json.loads(inspect(files.medusa_reduced, "--json"))
    assert (facts["drafter"], facts["layout"], facts["outputs"]) == ("medusa", "vllm", "one per head")
    assert (facts["num_heads"], facts["layers_a_head"], facts["has_biases"]) == (3, 2, True)
    assert (facts["draft_vocab_size"], facts["has_token_map"]) == (VOCAB_SIZE // 2, True)
    assert facts["tree"] == "generic, 63 nodes"
    fit = facts["fit"]
    assert (fit["target"], fit["fits"], fit["reason"]) == (str(files.target), True, None)
    measured = fit["measured"]
    assert measured["runtime"] == "torch"
    assert measured["tokens_per_step"] >= 1
    assert len(measured["accept_rate_at_depth"]) == 3
    assert set(measured["tokens_per_step_by_prompt"]) == {"chat", "code", "edit"}


@pytest.mark.parametrize(
    ("name", "layout"),
    [("eagle", "eagle2"), ("eagle3_reduced", "eagle3"), ("draft", "draft_model"), ("ngram_lm", "ngram_lm")],
)
def test_other_drafters_are_described(name, layout, files, inspect):
    facts = json.loads(inspect(getattr(files, name), "--json", "--no-measure"))
    assert facts["drafter"] == layout
    assert (facts["fit"]["fits"], facts["fit"]["measured"]) == (True, None)
    if layout == "eagle3":
        assert (facts["taps"], facts["draft_vocab_size"]) == ([0, 1, 2], VOCAB_SIZE // 2)
    if layout == "draft_model":
        assert any("same vocabulary" in line for line in facts["notes"])


def test_a_misfit_is_no_error_and_says_why(files, inspect, tmp_path):
    heads = random_heads(tiny_spec("llama", hidden_size=32), num_heads=5)
    folder = save_heads(tmp_path, {"medusa_num_heads": 2}, legacy_names(heads), "medusa_lm_head.pt")
    facts = json.loads(inspect(folder, "--json"))
    assert facts["notes"] == ["config.json says 2 heads; the file holds 5, and they are used"]
    assert not facts["fit"]["fits"]
    assert "this target's hidden size is" in facts["fit"]["reason"]
    text = inspect(folder)
    assert "does not fit" in text
    assert "config.json says 2 heads" in text


def test_people_read_a_table(files, inspect):
    text = " ".join(inspect(files.medusa).split())
    assert "output matrices" in text
    assert f"use it with --drafter medusa={files.medusa}" in text
    assert "tokens per step with 8 drafted" in text


def test_what_is_not_there_is_one_line(inspect, tmp_path, capsys):
    inspect(tmp_path / "nothing", code=2)
    damaged = save_heads(tmp_path, {}, {"0.0.linear.weight": random_heads(tiny_spec("llama"))["lm_heads.0.weight"]})
    facts = json.loads(inspect(damaged, "--json"))
    assert not facts["fit"]["fits"]
