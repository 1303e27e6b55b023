"""Counting a table: what a run leaves, what it measures, and that it can be repeated."""

import json

import pytest

from foreword.cli.main import main
from foreword.draft.lookup.ngram_table import FILE, load_table
from foreword.engine.llm import LLM
from foreword.sampling.params import SamplingParams
from foreword.train.data.answers import HELD_OUT, TRAIN, Answer, AnswerStore
from foreword.train.data.self_distill import Question
from foreword.train.loop.session import train
from foreword.train.loop.settings import TrainSettings
from foreword.train.methods.ngram_lm import measured
from tests.support.ngram_tables import table_of_texts
from tests.support.tiny_chat import write_tiny_chat
from tests.unit.test_train_run import Quiet

SETTINGS = TrainSettings(time_budget_s=60.0, num_tokens=300, max_new_tokens=12)


@pytest.fixture(scope="module")
def questions(llm) -> list[Question]:
    return [
        Question(f"q/{i}", "chat", "q", tuple(llm.encode([{"role": "user", "content": f"question {i}"}])))
        for i in range(60)
    ]


@pytest.fixture(scope="module")
def run(llm, questions, tmp_path_factory):
    """A folder that a run has left, what it told, and how far it came."""
    folder, reporter = tmp_path_factory.mktemp("run"), Quiet()
    return folder, reporter, train("ngram_lm", llm, questions, folder, SETTINGS, reporter)


def test_a_run_leaves_a_drafter_with_its_card_and_curve(llm, run):
    folder, reporter, progress = run
    assert reporter.phases == ["the model answers the prompts", "counting what follows what"]
    assert reporter.num_best == 1
    card = json.loads((folder / "config.json").read_text())["foreword"]
    assert card["target_fingerprint"] == llm.model.checkpoint.fingerprint
    table = load_table(folder, llm.model.checkpoint.spec.vocab_size)
    assert (card["contexts"], card["continuations"]) == (len(table.keys), len(table.ids))
    curve = json.loads((folder / "curve.json").read_text())
    counts = [point["answer_tokens"] for point in curve]
    assert counts == sorted(counts)
    assert counts[-1] == card["answer_tokens_seen"] == progress.num_tokens
    answers = AnswerStore(folder / "data").read()
    assert progress.num_tokens == sum(a.answer_len for a in answers if a.split == TRAIN), (
        "held-out ones are not counted"
    )
    assert "million answer tokens" in (folder / "curve.svg").read_text()
    assert "--drafter ngram_lm=THIS_FOLDER" in (folder / "README.md").read_text()


def test_it_drafts_and_the_words_are_the_models(llm, run):
    folder = run[0]
    drafting = LLM(llm.model, f"ngram_lm={folder}")
    known = AnswerStore(folder / "data").read()
    prompts = [list(a.token_ids[: a.prompt_len]) for a in known if a.split == TRAIN and a.temperature == 0.0][:4]
    params = SamplingParams(max_tokens=12)
    results = drafting.generate(prompts, params)
    assert [r.token_ids for r in results] == [r.token_ids for r in llm.generate(prompts, params)]
    assert sum(r.stats.accepted_tokens for r in results) > 0


def test_the_same_command_again_counts_the_same_and_more_answers_more(llm, questions, tmp_path):
    tables = []
    for num_tokens in (60, 60, 200):
        settings = TrainSettings(time_budget_s=60.0, num_tokens=num_tokens, max_new_tokens=12)
        train("ngram_lm", llm, questions, tmp_path, settings, Quiet())
        tables.append((tmp_path / FILE).read_bytes())
    assert tables[0] == tables[1]
    assert len(tables[2]) > len(tables[1])


def test_guesses_count_where_all_before_them_were_right():
    def answer(ids, category):
        return Answer(f"a/{category}", category, HELD_OUT, 1, tuple(ids), 0.0, 0, "stop")

    table = table_of_texts([[1, 2, 3, 4, 5, 6]] * 4, 10, order=2)
    measures = measured(table, [answer([1, 2, 3, 4, 5, 6], "right"), answer([1, 2, 9, 4, 9, 6], "wrong")])
    assert measures.first_depth_by_category == {"right": 1.0, "wrong": 0.0}
    assert measures.num_places == 8
    # right: after 2 all three of 3 4 5 and then 6 are right; one step and a token more, or less, by what is left.
    assert measures.accept_by_depth[0] == pytest.approx(4 / 8)
    assert measures.tokens_per_step == pytest.approx(8 / (1 + 4))


def test_the_command(tmp_path, capfd):
    folder = write_tiny_chat(tmp_path / "model")
    (tmp_path / "mine.jsonl").write_text("".join(f'{{"id": "{i}", "prompt": "question {i}"}}\n' for i in range(40)))
    code = main(
        ["train", "ngram_lm", "--model", str(folder), "--prompts", str(tmp_path / "mine.jsonl"), "--out", str(tmp_path / "out")]
        + ["--time-budget", "30s", "--num-tokens", "100", "--max-new-tokens", "8", "--runtime", "torch"]
    )  # fmt: skip
    err = capfd.readouterr().err
    assert code == 0, err
    assert "answer tokens; best: " in err
    assert f"--drafter ngram_lm={tmp_path / 'out'}" in err
    assert "step" not in err.split("answer tokens; best")[0].rsplit("\n", 1)[-1], "nothing was done in steps"
