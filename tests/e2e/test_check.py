"""`foreword check`: finds nothing where there is nothing, and every kind of difference where one is planted."""

import json
import re
from dataclasses import replace

import pytest

from foreword.bench import fidelity
from foreword.bench.differences import all_differences
from foreword.bench.fidelity import logits_after
from foreword.bench.planted_rule import AcceptEverything
from foreword.cli.main import main
from foreword.engine.llm import LLM
from foreword.sampling.params import SamplingParams
from tests.support.tiny_chat import write_tiny_chat

pytestmark = pytest.mark.usefixtures("without_shape_checks")  # thousands of passes: they would be most of the time

NUM_TOKENS = 16
LINES = [{"id": "a", "turns": ["hello hello hello", "more"]}, {"id": "b", "token_ids": [10, 11, 12, 10, 11, 12, 10]}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_chat(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def plain(tiny, cache):
    return LLM(tiny, "none", runtime="torch", cache_dir=cache)


@pytest.fixture
def run(tiny, cache, tmp_path, monkeypatch, capsys):
    """Runs `check` on two prompts; gives exit code, stdout, stderr."""
    monkeypatch.setenv("FOREWORD_CACHE", str(cache))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in LINES))

    def run(*arguments, has_file=True, drafter=("--drafter", "ngram")):
        file = ["--prompts", str(prompts)] if has_file else []
        options = ["--model", str(tiny), "--runtime", "torch", "--max-tokens", str(NUM_TOKENS), "--seed", "5", *file]
        options += [] if "--drafter" in arguments or "--speculative-config" in arguments else drafter
        code = main(["check", *options, *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr("foreword.verify.base.Matching.decide", AcceptEverything.decide)


def test_the_same_tokens_are_exit_code_0(run):
    code, out, err = run()
    assert code == 0
    assert err == "", "progress bars are for terminals"
    assert re.fullmatch(
        r"same tokens: yes \(4 answers, 64 tokens; \d+ drafted, \d+ of them accepted\)", out.splitlines()[-1]
    )
    for text in ("seed 5", "greedy", "temperature 0.8", "verifier match promises exactly the tokens"):
        assert text in out


def test_by_default_the_drafter_is_the_one_that_generate_uses(run):
    code, out, _ = run("--json", "--limit", 1, drafter=())
    data = json.loads(out)
    assert (code, data["same_tokens"], data["provenance"]["drafter"]["method"]) == (0, True, "auto")
    _, out, _ = run("--json", "--limit", 1, "--verifier", "rejection", drafter=())
    assert json.loads(out)["provenance"]["drafter"]["method"] == "ngram"


def test_json_is_one_object_that_says_what_was_run(run):
    code, out, _ = run("--json", "--batch-size", 3, "--limit", 2)
    (line,) = out.splitlines()
    data = json.loads(line)
    assert code == 0
    assert (data["same_tokens"], data["promise"], data["faults"], data["answers"]) == (True, "tokens", 0, 8)
    runs = [(r["mode"], r["drafter"], r["batch_size"]) for r in data["runs"]]
    both = [("ngram", 1), ("none", 3), ("ngram", 3)]
    assert runs == [(mode, *rest) for mode in ("greedy", "temperature 0.8") for rest in both]
    drafted = [r for r in data["runs"] if r["drafter"] == "ngram"]
    assert all(r["new_tokens"] == 32 for r in data["runs"])
    assert sum(r["accepted_tokens"] for r in drafted) <= sum(r["drafted_tokens"] for r in drafted)
    assert sum(r["drafted_tokens"] for r in drafted) > 0
    origin = data["provenance"]
    assert (origin["runtime"], origin["dtype"], origin["seed"], origin["verifier"]) == ("torch", "float32", 5, "match")
    assert len(origin["model_sha256"]) == len(origin["prompts_sha256"]) == 64
    assert origin["drafter"]["method"] == "ngram"


def test_without_a_file_the_prompts_of_demo_are_asked_and_0_leaves_out_sampling(run):
    code, out, _ = run("--temperature", 0, "--json", has_file=False)
    data = json.loads(out)
    assert (code, data["answers"], data["provenance"]["prompts"]) == (0, 3, "demo")
    assert [r["mode"] for r in data["runs"]] == ["greedy"]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_planted_fault_is_exit_code_1_with_its_place(run, planted, batch_size):
    code, out, _ = run("--json", "--batch-size", batch_size)
    data = json.loads(out)
    assert code == 1
    assert data["same_tokens"] is False
    assert data["faults"] == len([d for d in data["differences"] if not d["is_near_tie"]]) > 0
    assert {d["drafter"] for d in data["differences"]} == {"ngram"}, "plain decoding is not touched"
    for difference in data["differences"]:
        assert difference["plain_token"] != difference["other_token"]
        assert difference["gap"] is None or difference["gap"] > difference["tolerance"]


def test_people_read_where_and_how_far_apart(run, planted):
    code, out, _ = run()
    assert code == 1
    assert out.splitlines()[-1].startswith("same tokens: NO, ")
    assert "a, greedy, drafter ngram, batch 1: first difference at token" in out
    assert "not a near-tie" in out


def test_near_ties_are_reported_each_and_are_no_fault(run, planted, monkeypatch):
    """With a tolerance that excuses everything, the planted rule leaves several near-ties in one answer: all are listed."""
    monkeypatch.setitem(fidelity.LOGIT_TOLERANCE, "float32", 1e9)
    code, out, _ = run("--json")
    data = json.loads(out)
    assert (code, data["same_tokens"], data["faults"]) == (0, True, 0)
    assert data["near_ties"] == len(data["differences"]) > data["differing_answers"]
    places = [d["index"] for d in data["differences"] if (d["id"], d["mode"]) == ("b", "greedy")]
    assert places == sorted(set(places))
    code, out, _ = run()
    assert code == 0
    assert f"same tokens: yes, but for {data['near_ties']} near-ties" in out
    assert ": next difference at token" in out


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 9}], ids=["greedy", "sampled"])
def test_a_fault_behind_a_near_tie_is_found(plain, monkeypatch, options):
    """After a near-tie the texts part for good; what follows is still held to plain decoding."""
    params = SamplingParams(max_tokens=20, ignore_eos=True, **options)
    prompt = [10, 11, 12, 13]
    (reference,) = plain.generate([prompt], params)
    tie = [*reference.token_ids[:4], _another(plain, prompt, reference.token_ids[:4], reference.token_ids[4])]
    rest = replace(params, max_tokens=15, seed=reference.seed)
    (after,) = plain.generate([[*prompt, *tie]], rest)
    clean = [*tie, *after.token_ids]
    wrong = [*clean[:9], (clean[9] + 1) % 200, *clean[10:]]

    def found(token_ids, tolerance):
        monkeypatch.setitem(fidelity.LOGIT_TOLERANCE, "float32", tolerance)
        differences = all_differences(plain, reference, replace(reference, token_ids=token_ids), params)
        return [(d.index, d.is_near_tie) for d in differences]

    assert found(reference.token_ids, 1e-3) == []
    assert found(clean, 1e-9) == [(4, False)], "the first fault ends the search"
    assert found(clean, 1e9) == [(4, True)]
    monkeypatch.setattr("foreword.bench.differences.explain_difference", _only_the_first_is_a_tie(fidelity))
    assert found(wrong, 1e9) == [(4, True), (9, False)]
    assert found(clean[:-3], 1e9)[-1] == (17, False), "an answer that ends early is a fault"


def _another(llm, prompt, said, token):
    """The top-1 token but one."""
    order = logits_after(llm.model.decoder, [*prompt, *said]).argsort(descending=True).tolist()
    return next(t for t in order if t != token)


def _only_the_first_is_a_tie(module):
    """`explain_difference` with a tolerance that ends after the first difference."""
    calls = []

    def explain(decoder, prompt, plain_ids, other_ids, sampler, tolerance):
        difference = module.explain_difference(decoder, prompt, plain_ids, other_ids, sampler, tolerance)
        calls.append(difference)
        return difference if difference is None or len(calls) % 2 else replace(difference, tolerance=0.0)

    return explain


def test_nothing_is_excused_where_nothing_rounds():
    tie = fidelity.Difference(3, 1, 2, gap=0.0, tolerance=0.0)
    assert not tie.is_near_tie
    assert replace(tie, tolerance=1e-3).is_near_tie


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_rules_equal_in_law_are_held_to_greedy_only(run, rule):
    code, out, _ = run("--verifier", rule)
    assert code == 0
    assert "temperature 0.8 is left out: this verifier keeps the distribution" in out
    assert out.splitlines()[-1].startswith("same tokens: yes (2 answers, 32 tokens; ")


def test_a_lossy_rule_is_called_lossy_and_counted(run):
    code, out, _ = run("--verifier", "typical", "--temperature", 1.5)
    assert code == 0
    assert "it is lossy, so equality is not guaranteed" in out
    assert out.splitlines()[-1].startswith("differing answers: ")
    code, out, _ = run("--verifier", "typical", "--temperature", 1.5, "--json")
    data = json.loads(out)
    assert (code, data["same_tokens"], data["promise"], data["faults"]) == (0, None, "nothing", 0)
    assert data["differing_answers"] == sum(r["answers"] - r["same"] for r in data["runs"])


def test_a_check_without_a_draft_says_that_it_shows_little(run):
    code, out, _ = run("--num-speculative-tokens", 0)
    assert code == 0
    assert "nothing was drafted" in out
    assert out.splitlines()[-1].endswith("; none drafted)")


MISTAKES = {
    "no drafter": (["--drafter", "none"], "name another one"),
    "no drafter in JSON": (["--speculative-config", '{"method": "none"}'], "name another one"),
    "unknown drafter": (["--drafter", "ngrm"], "did you mean 'ngram'"),
    "nothing to compare": (["--max-tokens", "0"], "--max-tokens is 0"),
    "batch size 0": (["--batch-size", "0"], "batch_size is 0"),
    "cold": (["--temperature", "-1"], "temperature is -1"),
    "missing file": (["--prompts", "absent.jsonl"], "absent.jsonl cannot be read"),
    "limit": (["--limit", "0"], "--limit is 0; allowed: 1 or above"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(run, name):
    arguments, expected = MISTAKES[name]
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_limit_takes_the_first_of_the_own_prompts_too(run):
    code, out, _ = run("--limit", 1, has_file=False)
    assert code == 0
    assert "answers  to 1 prompt," in out
