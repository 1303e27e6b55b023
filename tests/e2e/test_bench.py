"""`foreword bench` from the command line, on a tiny model."""

import json

import pytest

from foreword.bench.results import load_result
from foreword.cli.main import main
from tests.support.tiny_chat import write_tiny_chat

OPTIONS = ["--max-tokens", "6", "--repeats", "1", "--no-speed-of-light", "--runtime", "torch", "--threads", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_chat(tmp_path_factory.mktemp("model")))


@pytest.fixture
def questions(tmp_path):
    """In Spec-Bench's layout."""
    lines = [{"question_id": 81 + i, "category": c, "turns": [f"hello {i}", "more"]} for i, c in enumerate(("qa", "qa", "math"))]  # fmt: skip
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(model, *options: str) -> int:
    return main(["bench", "--model", model, *OPTIONS, *options])


def test_a_whole_benchmark(model, questions, tmp_path, capsys):
    out, page, table = tmp_path / "out.json", tmp_path / "out.html", tmp_path / "out.md"
    outputs = ["--json", str(out), "--report", str(page), "--markdown", str(table)]
    options = ["--prompts", str(questions), "--stratified", "2", "--drafters", "ngram@3"]
    assert run(model, *options, *outputs) == 0
    data = json.loads(out.read_text())
    assert data["is_complete"]
    assert [p["id"] for p in data["prompts"]] in (["81", "83"], ["82", "83"])
    assert [p["category"] for p in data["prompts"]] == ["qa", "mt_bench"]
    assert data["provenance"]["prompt_files"][0]["name"] == "question.jsonl"
    assert str(tmp_path) not in out.read_text(), "no path of this machine"
    assert data["summary"]["modes"][0]["rows"][1]["label"] == "ngram@3"
    assert "ngram@3" in capsys.readouterr().out
    first = (page.read_text(), table.read_text())
    # Shown again from the file, the same; and there is nothing left to resume.
    assert main(["bench", "--render", str(out), "--report", str(page), "--markdown", str(table)]) == 0
    assert (page.read_text(), table.read_text()) == first
    assert run(model, *options, "--json", str(out), "--resume") == 0
    assert len(load_result(out).runs) == len(data["runs"])


def test_a_profile_is_measured_beside_the_others(model, questions, tmp_path, capsys):
    profile, out = tmp_path / "p.json", tmp_path / "out.json"
    tuning = ["--max-tokens", "8", "--drafters", "suffix", "--time-budget", "1s", "--out", str(profile)]
    assert main(["tune", "--model", model, "--runtime", "torch", *tuning]) == 0
    facts = json.loads(profile.read_text())
    facts["drafter"] = {"method": "suffix", "num_speculative_tokens": 5}
    profile.write_text(json.dumps(facts))
    options = ["--prompts", str(questions), "--limit", "1", "--drafters", "ngram", "--json", str(out)]
    assert run(model, *options, "--profile", str(profile)) == 0
    data = json.loads(out.read_text())
    assert [row["label"] for row in data["summary"]["modes"][0]["rows"]] == ["none", "ngram", "profile"]
    assert (data["methods"]["profile"]["drafter"], data["methods"]["profile"]["num_speculative_tokens"]) == (
        "suffix",
        5,
    )
    assert str(tmp_path) not in out.read_text(), "no path of this machine"
    facts["drafter"]["num_speculative_tokens"] = 6
    profile.write_text(json.dumps(facts))
    capsys.readouterr()
    assert run(model, *options, "--profile", str(profile), "--resume") == 2
    assert "profile_sha256" in capsys.readouterr().err
    assert run(model, "--prompts", str(questions), "--drafters", "profile") == 2
    assert "give the file with --profile FILE" in capsys.readouterr().err


def test_a_finished_result_is_not_written_over(model, questions, tmp_path, capsys):
    out = tmp_path / "out.json"
    options = ["--limit", "1", "--drafters", "ngram", "--json", str(out)]  # the first of the own prompts
    assert run(model, *options) == 0
    kept = out.read_bytes()
    assert len(load_result(out).prompts) == 1
    capsys.readouterr()
    assert main(["bench", "--model", "no-such-model.gguf", *OPTIONS, *options]) == 2, "before anything is loaded"
    assert "holds a finished benchmark: name another file in --json, or delete it" in capsys.readouterr().err
    assert out.read_bytes() == kept
    assert run(model, *options, "--resume") == 0


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(model, questions, tmp_path, capsys, monkeypatch):
    from foreword.bench.runner import Runner

    out, whole, done = tmp_path / "out.json", Runner._measure, []

    def interrupted(*arguments):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(whole(*arguments))

    options = ["--prompts", str(questions), "--drafters", "ngram"]
    monkeypatch.setattr(Runner, "_measure", interrupted)
    assert run(model, *options, "--json", str(out)) == 130
    err = capsys.readouterr().err
    assert err.endswith(f"{out} keeps 3 runs of 6; the same command with --resume continues it\ninterrupted\n")
    assert run(model, *options) == 130
    assert "nothing is kept: with --json FILE" in capsys.readouterr().err
    monkeypatch.undo()
    assert run(model, *options, "--json", str(out), "--resume") == 0
    assert len(load_result(out).runs) == 6


def test_a_stopped_result_is_not_written_over(model, questions, tmp_path, capsys):
    out = tmp_path / "out.json"
    options = ["--prompts", str(questions), "--limit", "1", "--drafters", "ngram", "--json", str(out)]
    assert run(model, *options) == 0
    out.write_text(out.read_text().replace('"is_complete":true', '"is_complete":false'))
    capsys.readouterr()
    assert run(model, *options) == 2
    assert "--resume continues it" in capsys.readouterr().err
    assert run(model, *options, "--seed", "3", "--resume") == 2
    assert "was measured with other seed (0, now 3)" in capsys.readouterr().err
    assert run(model, *options, "--resume") == 0


def test_prompts_for_other_engines(model, questions, tmp_path):
    out = tmp_path / "ids.jsonl"
    assert run(model, "--prompts", str(questions), "--limit", "2", "--write-prompts", str(out)) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["81", "82"]
    assert all(line["ids"] for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--drafters", "ngarm"], "unknown drafter 'ngarm'"),
        (["--drafters", "ngram,,suffix"], "--drafters is 'ngram,,suffix'"),
        (["--verifiers", "mach"], "unknown"),
        (["--temperatures", "warm"], "--temperatures has 'warm'; allowed: numbers, 0 or above"),
        (["--batch-sizes", "1.5"], "--batch-sizes has '1.5'; allowed: whole numbers, 1 or above"),
        (["--max-tokens", "1"], "--max-tokens is 1; allowed: 2 or above"),
        (["--repeats", "0"], "--repeats is 0; allowed: 1 or above"),
        (["--prompts", "missing.jsonl"], "missing.jsonl cannot be read"),
        (["--limit", "0"], "--limit is 0; allowed: 1 or above"),
        (["--stratified", "2"], "--stratified goes with --prompts"),
        (["--resume"], "--resume continues the benchmark in --json FILE"),
        (["--json", "no-folder/x.json"], "allowed: a file in a folder that exists"),
        (["--peers", "x.json"], "--peers and --peers-prompts go together"),
        (["--render", "missing.json"], "missing.json cannot be read"),
    ],
)
def test_users_mistakes_are_one_line_before_anything_is_loaded(options, message, capsys):
    assert main(["bench", "--model", "no-such-model.gguf", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
