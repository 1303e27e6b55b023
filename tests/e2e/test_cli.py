"""The command line as other programs and people meet it, on a tiny random model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import foreword
from foreword.bench.demo_run import steps_of
from foreword.cli.main import main
from tests.support.tiny_chat import CONTEXT_LEN, write_tiny_chat

KEYS = [
    "id", "category", "text", "token_ids", "prompt_tokens", "new_tokens", "finish_reason", "steps", "drafted_tokens",
    "accepted_tokens", "tokens_per_step", "prefill_s", "decode_s", "decode_tok_per_s", "runtime", "dtype", "drafter",
    "seed",
]  # fmt: skip
LINES = [
    {"id": "x/1", "category": "chat", "turns": ["hello", "more"], "source": "test"},
    {"id": "x/2", "prompt": "hello hello hello"},
    {"id": "x/3", "token_ids": [10, 11, 12, 10, 11, 12, 10]},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_chat(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture
def run(tiny, capsys):
    """Runs `generate` on the tiny model; gives exit code, stdout, stderr."""

    def run(*arguments, command="generate", model=tiny):
        words = [command, *map(str, arguments)]
        words += ["--runtime", "torch"] if "--runtime" not in words and command in ("generate", "demo") else []
        code = main([*words, *(["--model", str(model)] if command in ("generate", "demo") else [])])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def records(out):
    return [json.loads(line) for line in out.splitlines()]


# --- generate


def test_json_lines_have_exactly_the_keys_of_the_contract(run, prompts):
    code, out, err = run("--prompts", prompts, "--json", "--max-tokens", 24, "--ignore-eos", "--seed", 5)
    assert code == 0
    lines = records(out)
    assert [list(line) for line in lines] == [KEYS] * 3
    assert [line["id"] for line in lines] == ["x/1", "x/2", "x/3"]
    assert [line["category"] for line in lines] == ["chat", None, None]
    for line in lines:
        assert line["new_tokens"] == len(line["token_ids"]) == 24
        assert line["finish_reason"] == "length"
        assert 0 < line["steps"] <= 23
        assert line["tokens_per_step"] == pytest.approx(23 / line["steps"])
        assert line["accepted_tokens"] <= line["drafted_tokens"]
        assert line["decode_tok_per_s"] == pytest.approx(23 / line["decode_s"])
        assert (line["runtime"], line["dtype"], line["drafter"], line["seed"]) == ("torch", "float32", "auto", 5)
    assert lines[2]["prompt_tokens"] == 7
    assert err == "", "progress bars are for terminals"


@pytest.mark.parametrize(
    "sampling", [[], ["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01"]]
)
def test_drafter_and_batch_size_change_no_token(run, prompts, sampling):
    common = ["--prompts", prompts, "--json", "--max-tokens", 40, "--seed", 3, *sampling]
    plain = [line["token_ids"] for line in records(run(*common, "--drafter", "none")[1])]
    for options in (["--drafter", "ngram"], ["--batch-size", 3], ["--num-speculative-tokens", 2]):
        assert [line["token_ids"] for line in records(run(*common, *options)[1])] == plain
    config = json.dumps({"method": "ngram", "num_assistant_tokens": 3})
    assert [line["token_ids"] for line in records(run(*common, "--speculative-config", config)[1])] == plain


def test_a_fresh_seed_is_reported_and_brings_the_text_back(run):
    first = records(run("--prompt", "hello", "--json", "--temperature", 1, "--max-tokens", 16)[1])[0]
    other = records(run("--prompt", "hello", "--json", "--temperature", 1, "--max-tokens", 16)[1])[0]
    again = records(
        run("--prompt", "hello", "--json", "--temperature", 1, "--max-tokens", 16, "--seed", first["seed"])[1]
    )[0]
    assert first["seed"] != other["seed"]
    assert again["token_ids"] == first["token_ids"]


def test_text_for_people_streams_to_stdout_and_figures_to_stderr(run):
    options = ["--prompt", "hello", "--max-tokens", 20, "--seed", 1]
    text = records(run(*options, "--json")[1])[0]["text"]
    for batch_size in (1, 2):  # streamed, and whole
        code, out, err = run(*options, "--batch-size", batch_size)
        assert (code, out) == (0, text + "\n")
        assert "20 tokens" in err
        assert "drafter auto, seed 1" in err


def test_a_prompt_is_a_chat_turn_unless_raw(run):
    chat = records(run("--prompt", "hello", "--json", "--max-tokens", 1)[1])[0]
    raw = records(run("--prompt", "hello", "--raw", "--json", "--max-tokens", 1)[1])[0]
    assert chat["prompt_tokens"] > raw["prompt_tokens"] == 1


def test_all_turns_asks_with_the_models_own_answers_between(run, prompts, tiny):
    options = ["--prompts", prompts, "--json", "--max-tokens", 12, "--ignore-eos", "--seed", 2]
    code, out, _ = run(*options, "--all-turns")
    conversation, text, ids = records(out)
    single = records(run(*options)[1])
    assert code == 0
    assert [text["token_ids"], ids["token_ids"]] == [line["token_ids"] for line in single[1:]]
    assert conversation["new_tokens"] == 24
    assert conversation["tokens_per_step"] == pytest.approx(22 / conversation["steps"])

    llm = foreword.LLM(tiny, runtime="torch")
    first = single[0]
    question = [
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "more"},
    ]  # fmt: skip
    second = llm.generate([question], foreword.SamplingParams(max_tokens=12, ignore_eos=True, seed=2))[0]
    assert conversation["token_ids"] == first["token_ids"] + second.token_ids
    assert conversation["prompt_tokens"] == first["prompt_tokens"] + len(second.prompt_token_ids)


def test_a_turn_that_no_longer_fits_ends_the_conversation_and_says_so(run, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"id": 1, "turns": ["hello", "x" * CONTEXT_LEN]}) + "\n")
    code, out, err = run("--prompts", path, "--all-turns", "--json", "--max-tokens", 4, "--ignore-eos")
    (line,) = records(out)
    assert (code, line["new_tokens"], line["finish_reason"]) == (0, 4, "length")
    assert "line 1: turn 2 and later are left out: the prompt has" in err


def test_limit_takes_the_first(run, prompts):
    assert [
        line["id"] for line in records(run("--prompts", prompts, "--limit", 2, "--json", "--max-tokens", 2)[1])
    ] == ["x/1", "x/2"]


def test_no_new_tokens_is_a_valid_wish(run):
    (line,) = records(run("--prompt", "hello", "--max-tokens", 0, "--json")[1])
    assert (line["new_tokens"], line["token_ids"], line["text"], line["finish_reason"]) == (0, [], "", "length")
    assert (line["steps"], line["tokens_per_step"], line["decode_tok_per_s"]) == (0, None, None)


def test_stop_tokens_end_the_answer(run):
    options = ["--prompt", "hello", "--raw", "--json", "--max-tokens", 30, "--ignore-eos"]
    (free,) = records(run(*options)[1])
    wanted = free["token_ids"][5]
    (line,) = records(run(*options, "--stop-token-id", wanted, "--stop-token-id", 0)[1])
    end = min(free["token_ids"].index(t) for t in (wanted, 0) if t in free["token_ids"])
    assert line["finish_reason"] == "stop"
    assert line["token_ids"] == free["token_ids"][: end + 1]


def test_an_answer_may_run_to_the_end_of_the_context(run, tmp_path):
    path = tmp_path / "full.jsonl"
    path.write_text(json.dumps({"id": 1, "token_ids": [10] * (CONTEXT_LEN - 6)}) + "\n")
    (line,) = records(run("--prompts", path, "--json", "--max-tokens", 50, "--ignore-eos")[1])
    assert (line["new_tokens"], line["finish_reason"]) == (6, "length")


# --- mistakes: exit code 2, one line on stderr, nothing on stdout

MISTAKES = {
    "unknown drafter": (["--prompt", "a", "--drafter", "ngrm"], ["unknown drafter 'ngrm'", "ngram", "none"]),
    "unknown verifier": (["--prompt", "a", "--verifier", "mach"], ["unknown verifier 'mach'", "match"]),
    "unknown runtime": (["--prompt", "a", "--runtime", "tort"], ["unknown runtime 'tort'", "torch"]),
    "unknown dtype": (["--prompt", "a", "--dtype", "float8"], ["unknown dtype 'float8'", "bfloat16"]),
    "dtype of the other runtime": (["--prompt", "a", "--dtype", "int8"], ["torch runtime does not compute in int8"]),
    "empty prompt": (["--prompt", ""], ["the prompt is empty"]),
    "empty raw prompt": (["--prompt", "", "--raw"], ["the prompt is empty"]),
    "no prompt": ([], ["neither of --prompt and --prompts"]),
    "raw file": (["--prompts", "x.jsonl", "--raw"], ["--raw goes with --prompt"]),
    "limit without file": (["--prompt", "a", "--limit", "3"], ["--limit goes with --prompts"]),
    "missing file": (["--prompts", "absent.jsonl"], ["absent.jsonl cannot be read: No such file"]),
    "negative temperature": (["--prompt", "a", "--temperature", "-0.5"], ["temperature is -0.5", "0 for greedy"]),
    "tiny temperature": (["--prompt", "a", "--temperature", "1e-38"], ["temperature is 1e-38", "0 for greedy"]),
    "prompt not UTF-8": (["--prompt", "a\udcff"], [r"the text has '\udcff' in it"]),
    "top_p 0": (["--prompt", "a", "--top-p", "0"], ["top_p is 0", "above 0, at most 1"]),
    "top_p above 1": (["--prompt", "a", "--top-p", "1.5"], ["top_p is 1.5"]),
    "negative max tokens": (["--prompt", "a", "--max-tokens", "-1"], ["max_tokens is -1", "0 or above"]),
    "no number": (["--prompt", "a", "--max-tokens", "many"], ["'--max-tokens'", "integer", "see 'foreword gen"]),
    "unknown option": (["--prompt", "a", "--colour"], ["No such option: --colour", "see 'foreword generate --help'"]),
    "batch size 0": (["--prompt", "a", "--batch-size", "0"], ["batch_size is 0; allowed: a whole number, 1 or above"]),
    "far too many threads": (["--prompt", "a", "--threads", "100000"], ["threads is 100000; allowed: at most"]),
    "no drafter's name": (["--prompt", "a", "--drafter", ""], ["--drafter is empty; allowed: auto, none"]),
    "threads 0": (["--prompt", "a", "--threads", "0"], ["threads is 0; allowed: a whole number, 1 or above"]),
    "config not JSON": (["--prompt", "a", "--speculative-config", "{method}"], ["--speculative-config is not JSON"]),
    "config no object": (["--prompt", "a", "--speculative-config", "[]"], ["must be a JSON object"]),
    "config unknown key": (["--prompt", "a", "--speculative-config", '{"metod": "ngram"}'], ["did you mean 'method'"]),
    "config null": (["--prompt", "a", "--speculative-config", '{"method": null}'], ["method is None; allowed: a text"]),
    "config ngram": (
        ["--prompt", "a", "--model", "absent", "--speculative-config", '{"prompt_lookup_min": 4}'],
        ["prompt_lookup_min is 4 and prompt_lookup_max 3"],
    ),
    "two drafters": (["--prompt", "a", "--drafter", "none", "--speculative-config", "{}"], ["give one of them"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(run, name):
    arguments, expected = MISTAKES[name]
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    for text in expected:
        assert text in err


def test_a_prompt_longer_than_the_context_says_both_lengths(run, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text('{"prompt": "hello"}\n' + json.dumps({"token_ids": [5] * CONTEXT_LEN}) + "\n")
    code, out, err = run("--prompts", path, "--json")
    assert (code, out) == (2, ""), "nothing is generated before all prompts are checked"
    assert f"line 2: the prompt has {CONTEXT_LEN} tokens, but the model's context holds {CONTEXT_LEN}" in err


def test_token_ids_outside_the_vocabulary_are_refused_with_their_line(run, tmp_path):
    path = tmp_path / "ids.jsonl"
    path.write_text('{"token_ids": [5, 100000]}\n')
    code, _, err = run("--prompts", path)
    assert code == 2
    assert "line 1: token id 100000 is outside the model's vocabulary" in err


def test_text_that_is_no_unicode_is_refused_with_its_line(run, tmp_path):
    path = tmp_path / "half.jsonl"
    path.write_text('{"prompt": "hello"}\n{"prompt": "half a pair: \\ud800"}\n')
    code, out, err = run("--prompts", path, "--json")
    assert (code, out) == (2, "")
    assert r"line 2: the text has '\ud800' in it" in err


@pytest.mark.parametrize("command", ["generate", "demo", "inspect"])
def test_an_unknown_model_is_named(run, tmp_path, command):
    missing = tmp_path / "no-such.gguf"
    options = {"generate": ["--prompt", "a"], "demo": [], "inspect": [missing]}[command]
    code, out, err = run(*options, command=command, model=missing)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: there is no model")


def test_an_unknown_command_is_named(capsys):
    assert main(["generat"]) == 2
    assert "No such command 'generat'" in capsys.readouterr().err


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "generate" in captured.out
    assert captured.err == ""


def test_interrupting_gives_130(monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("foreword.bench.machine_facts.machine_facts", interrupt)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_bug_is_not_hidden(monkeypatch):
    monkeypatch.setattr("foreword.bench.machine_facts.machine_facts", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


# --- demo, inspect, doctor


def test_demo_finds_the_same_tokens(run):
    code, out, _ = run("--max-tokens", 24, command="demo")
    assert code == 0
    assert out.splitlines()[-1] == "same tokens: yes"
    for name in ("chat", "code", "edit", "greedy", "temperature 0.8", "tokens per step", "ratio"):
        assert name in out
    (why,) = [line for line in out.splitlines() if line.startswith("why: ")]
    tokens, steps = (float(number) for number in re.findall(r"\d+\.\d+", why))
    assert 1.0 <= tokens <= 17.0
    assert steps > 0.0


def test_the_reason_of_the_demo_counts_all_runs():
    """A step of two runs: 6 + 3 tokens after the first in 3 + 3 steps, 0.3 s."""
    runs = [
        SimpleNamespace(stats=SimpleNamespace(new_tokens=tokens, num_steps=3, decode_s=seconds))
        for tokens, seconds in ((7, 0.1), (4, 0.2))
    ]
    steps = steps_of(runs)
    assert (steps.tokens, steps.seconds) == (1.5, pytest.approx(0.05))
    assert steps_of([]).tokens == 0.0


def test_demo_break_catches_the_planted_rule(run):
    code, out, _ = run("--break", "--max-tokens", 24, command="demo")
    assert code == 0
    assert "verifier match              same tokens: yes" in out
    assert "verifier accept everything  same tokens: NO, first difference at token" in out
    assert "verifier match              same tokens: NO" not in out


def test_demo_break_fails_where_nothing_is_caught(run):
    code, out, _ = run("--break", "--drafter", "none", "--max-tokens", 8, command="demo")
    assert code == 1
    assert "caught the planted rule in 0 of 6 answers" in out


def test_demo_fails_on_a_difference_that_is_no_near_tie(run, monkeypatch):
    from foreword.bench.planted_rule import AcceptEverything

    monkeypatch.setattr("foreword.verify.base.Matching.decide", AcceptEverything.decide)
    code, out, _ = run("--max-tokens", 24, command="demo")
    assert code == 1
    assert out.splitlines()[-1] == "same tokens: NO"


def test_inspect_says_what_a_model_is(run, tiny):
    code, out, _ = run(tiny, "--json", command="inspect")
    facts = json.loads(out)
    assert code == 0
    assert (facts["family"], facts["context_len"], facts["stored_as"]) == ("llama", CONTEXT_LEN, "F32")
    assert facts["sizes"]["hidden_size"] == 48
    assert facts["tokenizer"]["has_chat_template"]
    assert facts["tokenizer"]["end_tokens"] == {"2": "<|im_end|>", "0": "<|endoftext|>"}
    assert facts["kv_bytes_per_token"] == {
        "torch float32": 2 * 2 * 2 * 12 * 4,
        "native, torch bfloat16": 2 * 2 * 2 * 12 * 2,
    }
    assert facts["drafters"]["ngram"].startswith("prompt lookup")
    code, out, _ = run(tiny, command="inspect")
    assert code == 0
    assert "2 of width 48" in out


def test_doctor_finds_the_machine(run):
    code, out, _ = run("--json", command="doctor")
    facts = json.loads(out)
    assert code == 0
    assert facts["foreword"] == foreword.__version__
    assert facts["choice"]["reason"]
    assert facts["cache"]["free_bytes"] > 0
    assert not facts["default_model"]["is_cached"]
    assert facts["native"]["is_available"] == (facts["native"]["problem"] is None)
    code, out, _ = run(command="doctor")
    assert code == 0
    assert "native runtime" in out
    assert "fetched at the first use" in out


# --- as a process


def foreword_process(*arguments, **options):
    environment = os.environ | {"NO_COLOR": "1"}
    command = [sys.executable, "-m", "foreword", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, **options)


def test_help_imports_nothing_heavy():
    """What half a second allows: a third of one here, of which two thirds are Python, typer and rich."""
    command = [sys.executable, "-X", "importtime", "-m", "foreword", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert all(name in done.stdout for name in ("demo", "generate", "inspect", "doctor"))
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in imported
    heavy = {"torch", "numpy", "transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf", "jinja2"}
    assert not imported & heavy


def test_version():
    assert foreword_process("--version").stdout.strip() == f"foreword {foreword.__version__}"


def test_a_process_prints_data_only_on_stdout(tiny, prompts):
    done = foreword_process(
        "generate", "--model", tiny, "--prompts", prompts, "--json", "--max-tokens", 4, "--runtime", "torch"
    )
    assert done.returncode == 0, done.stderr
    assert [record["id"] for record in records(done.stdout)] == ["x/1", "x/2", "x/3"]


def test_a_mistake_shows_no_traceback(tmp_path):
    done = foreword_process("generate", "--prompt", "hello", "--model", tmp_path / "none.gguf")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: there is no model")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file here that is always full")
def test_a_full_disk_is_one_line(tiny):
    command = [
        sys.executable,
        "-m",
        "foreword",
        "generate",
        "--model",
        str(tiny),
        "--prompt",
        "a",
        "--runtime",
        "torch",
    ]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    assert "error: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break otherwise there")
def test_a_reader_that_goes_away_is_no_error(tiny):
    command = [
        sys.executable,
        "-m",
        "foreword",
        "generate",
        "--model",
        str(tiny),
        "--prompt",
        "hello",
        "--runtime",
        "torch",
    ]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=120)
    finally:
        os.close(write_end)
    assert done.returncode == 1
    assert done.stderr == ""


def test_the_help_names_every_drafter_and_verifier():
    from foreword.cli.options import DRAFTER_NAMES, VERIFIER_NAMES
    from foreword.draft.registry import drafter_names
    from foreword.verify.base import VERIFIERS

    assert DRAFTER_NAMES.split(", ") == drafter_names()
    assert set(VERIFIER_NAMES.split(", ")) == set(VERIFIERS)
