"""The benchmark's runner: every run once, interleaved, compared, and able to go on."""

import pytest

from foreword.bench.results import check_same, load_result
from foreword.bench.runner import Runner
from foreword.bench.summary import summarise
from foreword.draft.synthetic import SyntheticDrafter
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from tests.support.bench_results import PROMPTS, make_result, planted, run_result, toy_model


def row_of(result, label, mode=0):
    (row,) = [row for row in summarise(result)["modes"][mode]["rows"] if row["label"] == label]
    return row


def test_every_run_is_there_once_and_in_turns():
    result = run_result(make_result("ngram", "suffix"))
    assert result.is_complete
    assert {run.key for run in result.runs} == {(c, r, g) for c in range(3) for r in range(2) for g in range(4)}
    assert len(result.runs) == 24
    order = [run.cell for run in result.runs if run.repeat == 0]
    assert order == [0, 1, 2] * 4, "cells take turns on every prompt"
    for run in result.runs:
        (answer,) = run.answers
        assert run.decode_tokens == answer.new_tokens - 1
        assert run.num_passes == answer.steps
        assert 0 < run.target_s + run.draft_s <= run.decode_s


def test_rows_say_the_same_words_and_have_figures():
    result = run_result(make_result("ngram", "suffix", temperatures=(0.0, 0.9), batch_sizes=(1, 3)))
    summary = summarise(result)
    assert len(summary["modes"]) == 4
    for mode in summary["modes"]:
        assert [row["gate"]["status"] for row in mode["rows"]] == ["same"] * 3
        assert mode["rows"][0]["speedup"]["value"] == 1
        assert all(row["speedup"]["value"] > 0 for row in mode["rows"])
        assert mode["num_prompts_by_category"] == {"chat & more": 2, "code": 2}
    assert summary["speed_of_light_tok_per_s"] == pytest.approx(1e3 / 1.5)


def test_a_drafter_that_changes_words_has_no_figure_and_is_not_run_again():
    result = run_result(make_result("ngram", "suffix"), make=planted)
    row, honest = row_of(result, "ngram"), row_of(result, "suffix")
    assert row["gate"]["status"] == "failed"
    assert "answers differ from plain decoding; token" in row["gate"]["reason"]
    assert (row["speedup"], row["tok_per_s"], row["by_category"]) == (None, None, {})
    assert honest["gate"]["status"] == "same"
    assert honest["speedup"] is not None
    assert not any(run.repeat == 1 for run in result.runs if run.cell == 1)


def test_a_lossy_rule_is_labelled_and_outside_the_gate():
    result = run_result(make_result("ngram", verifiers=("typical", "rejection"), temperatures=(0.8,)))
    assert row_of(result, "ngram · typical")["gate"]["status"] == "lossy"
    assert row_of(result, "ngram · rejection")["gate"]["status"] == "law"
    assert summarise(result)["modes"][0]["best"] is None, "no figure of other tokens is called the best"


def test_what_cannot_go_together_is_refused_with_the_reason():
    def make(model, cell):
        if cell.verifier == "block":
            raise ConfigError("these two do not go together")
        return LLM(model, cell.drafter, batch_size=1)

    result = run_result(make_result("ngram", verifiers=("match", "block")), make=make)
    assert row_of(result, "ngram · block")["gate"] == {
        "status": "refused", "reason": "these two do not go together", "num_answers": 0, "num_near_ties": 0,
    }  # fmt: skip


def test_a_stopped_benchmark_goes_on_where_it_was(tmp_path):
    path, result = tmp_path / "result.json", make_result("ngram", "suffix")
    steps = 0

    def stop():
        nonlocal steps
        steps += 1
        if steps == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_result(result, on_run=stop)
    result.save(path)
    kept = load_result(path)
    assert not kept.is_complete
    assert len(kept.runs) == 7
    first = [run.key for run in kept.runs]
    check_same(kept, make_result("ngram", "suffix"), path)
    runner = Runner(toy_model(), PROMPTS, kept, save=lambda: kept.save(path))
    assert runner.num_left == 24 - 7
    runner.run()
    whole = load_result(path)
    assert [run.key for run in whole.runs][:7] == first
    assert len(whole.runs) == len({run.key for run in whole.runs}) == 24
    assert whole.runs[:7] == result.runs[:7], "what was measured stays as it was"
    assert {row["gate"]["status"] for row in summarise(whole)["modes"][0]["rows"]} == {"same"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"max_tokens": 13}, r"other max_tokens \(12, now 13\)"),
        ({"repeats": 5}, r"other repeats \(2, now 5\)"),
    ],
)
def test_another_benchmark_does_not_go_on_with_it(other, message, tmp_path):
    kept = make_result("ngram")
    with pytest.raises(ConfigError, match=message):
        check_same(kept, make_result("ngram", **other), tmp_path)
    with pytest.raises(ConfigError, match="other cells"):
        check_same(kept, make_result("suffix"), tmp_path)


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("{}", "is no result of foreword bench")])
def test_a_file_that_is_no_result_is_refused(text, message, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_result(tmp_path / "x.json")


# --- the synthetic drafter


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_synthetic_guesses_are_right_as_often_as_they_should(alpha):
    """300 tokens: at 0.6, depth 1 is judged in over 120 steps, a standard deviation of 0.045."""
    model = toy_model()
    params = SamplingParams(max_tokens=300, ignore_eos=True)
    (plain,) = LLM(model, "none", batch_size=1).generate([[1, 2, 3]], params)
    llm = LLM(model, f"synthetic={alpha}", num_speculative_tokens=3, batch_size=1)
    (result,) = llm.generate([[1, 2, 3]], params, drafting=DraftingParams(reference=plain.token_ids))
    assert result.token_ids == plain.token_ids
    rates = result.stats.accept_rate_at_depth
    assert rates[0] == pytest.approx(alpha, abs=0.12)
    assert rates[2] == pytest.approx(alpha**3, abs=0.12)
    (without,) = llm.generate([[1, 2, 3]], params)
    assert without.stats.drafted_tokens == 0


@pytest.mark.parametrize("alpha", ["1.5", "-1", "many"])
def test_a_chance_must_be_one(alpha):
    with pytest.raises(ConfigError, match="allowed: a probability from 0 to 1"):
        LLM(toy_model(), f"synthetic={alpha}")


def test_the_bench_gives_synthetic_drafters_the_plain_answer():
    result = run_result(make_result("synthetic=1.0", repeats=1))
    row = row_of(result, "synthetic=1.0")
    assert row["gate"]["status"] == "same"
    assert row["mean_accept_rate"] == 1
    assert row["tokens_per_step"] > 3
    assert not row["is_real"]
    assert SyntheticDrafter.uses_reference
