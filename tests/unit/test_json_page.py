"""docs/reference/json.md names the keys that the records have."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from foreword.bench.results import BenchResult, Run
from foreword.cli.answer_record import record
from foreword.cli.conversation import Conversation, answer
from foreword.cli.main import main
from foreword.cli.prompt_file import PromptLine
from foreword.engine.llm import LLM
from foreword.engine.profile_file import read_profile
from foreword.sampling.params import SamplingParams

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")


def tables(heading: str) -> list[set[str]]:
    """The keys of each table under a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^\|.*\n?)+", section, re.MULTILINE)
    return [set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) for table in found]


def test_the_line_of_generate(model):
    llm = LLM(model, "ngram")
    conversation = Conversation.begin(llm, PromptLine("test", "1", prompt="one two one two"))
    (done,) = answer(llm, [conversation], SamplingParams(max_tokens=4, logprobs=1), all_turns=False)
    always, asked_for = tables("foreword generate --json")
    assert record(llm, done).keys() == always | {"logprobs"}
    assert record(llm, done, shows_turns=True).keys() | {"sample_index"} == always | asked_for


def test_the_object_of_profile(files, capsys):
    code = main(
        ["profile", "--model", str(files.target), "--widths", "1", "--context", "4", "--repeats", "1", "--json"]
    )
    assert code == 0
    assert json.loads(capsys.readouterr().out).keys() == tables("foreword profile --json")[0]


def test_the_object_of_check(files, capsys):
    options = [
        "--model",
        str(files.target),
        "--drafter",
        "ngram",
        "--limit",
        "1",
        "--max-tokens",
        "4",
        "--runtime",
        "torch",
    ]
    assert main(["check", *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == tables("foreword check --json")[0]


def test_the_file_of_bench():
    whole, runs, rows = tables("foreword bench --json")
    data = json.loads((ROOT / "docs" / "reports" / "spec_bench.json").read_text(encoding="utf-8"))
    assert whole == data.keys() == {field.name for field in fields(BenchResult)} | {"format", "version", "summary"}
    assert runs == data["runs"][0].keys() == {field.name for field in fields(Run)}
    assert rows == data["summary"]["modes"][0]["rows"][0].keys()


def test_tune_and_its_profile(files, capsys, tmp_path):
    out = tmp_path / "profile.json"
    options = [
        "--model",
        str(files.target),
        "--drafters",
        "ngram",
        "--limit",
        "1",
        "--max-tokens",
        "4",
        "--time-budget",
        "1s",
    ]
    assert main(["tune", *options, "--runtime", "torch", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == tables("foreword tune --json")[0]
    assert json.loads(out.read_text()).keys() == tables("The tuned profile")[0]
    read_profile(out)


@pytest.mark.parametrize(
    "card", sorted((ROOT / "checkpoints").glob("*/config.json")), ids=lambda card: card.parent.name
)
def test_the_card_of_a_trained_drafter(card):
    assert tables("The card of a trained drafter")[0] <= json.loads(card.read_text())["foreword"].keys()
