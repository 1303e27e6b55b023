"""Options of `foreword generate` that shape answers: grammars, bias, banned words, log-probabilities."""

import json

import pytest

from foreword.cli.main import main
from tests.support.tiny_chat import write_tiny_chat

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_chat(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def run(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))

    def run(*arguments):
        options = ["--model", str(tiny), "--runtime", "torch", "--max-tokens", "24", "--prompt", "hello"]
        code = main(["generate", *options, *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_grammars(run, tmp_path):
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    code, out, _ = run("--choice", "yes", "--choice", "no")
    assert (code, out.strip() in ("yes", "no")) == (0, True)
    code, out, _ = run("--regex", "[0-9]{4}")
    assert (code, len(out.strip()), out.strip().isdigit()) == (0, 4, True)
    schema = '{"type": "boolean"}'
    file = tmp_path / "schema.json"
    file.write_text(schema)
    for given in (schema, file):
        code, out, _ = run("--json-schema", given)
        assert (code, out.strip() in ("true", "false")) == (0, True)


def test_bias_and_banned_words_and_logprobs(run):
    code, out, _ = run("--json", "--logprobs", 2, "--logit-bias", "70=100", "--max-tokens", 3)
    line = json.loads(out)
    assert (code, line["token_ids"]) == (0, [70, 70, 70])
    assert [entry["token_id"] for entry in line["logprobs"]] == [70, 70, 70]
    assert all(entry["logprob"] <= entry["top"][0][1] and len(entry["top"]) == 2 for entry in line["logprobs"])
    word = line["text"][0]
    code, out, _ = run("--json", "--logit-bias", "70=100", "--bad-word", word, "--max-tokens", 3)
    without = json.loads(out)
    assert (code, 70 in without["token_ids"], word in without["text"]) == (0, False, False)
    assert "logprobs" not in without, "only where asked for"


MISTAKES = {
    "two grammars": (["--regex", "a", "--choice", "b"], "--regex and --choice are all grammars"),
    "schema": (["--json-schema", "absent.json"], "neither a JSON object nor a file of one (No such file"),
    "schema no JSON": (["--json-schema", "{no"], "is not JSON"),
    "bias": (["--logit-bias", "a=1"], "--logit-bias is 'a=1'; allowed: a token id and a number, such as 42=-5"),
    "bias no number": (["--logit-bias", "42"], "--logit-bias is '42'"),
    "logprobs as text": (["--logprobs", "1"], "--logprobs goes with --json"),
    "negative logprobs": (["--logprobs", "-1", "--json"], "logprobs is -1"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(run, name):
    arguments, expected = MISTAKES[name]
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err
