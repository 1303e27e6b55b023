"""`foreword tune`: candidates, heats, what it concludes, the profile it leaves."""

import json
from types import SimpleNamespace

import pytest

from foreword.checkpoint.pairing import Pairing
from foreword.cli.main import main
from foreword.draft.draft_config import DraftConfig
from foreword.engine.llm import LLM
from foreword.engine.profile_file import read_profile
from foreword.engine.stats import RequestStats
from foreword.errors import ConfigError, UnknownNameError
from foreword.sampling.params import SamplingParams
from foreword.tune.candidates import candidate, default_candidates, parse_candidates, variants
from foreword.tune.draft_model_fit import PairFacts, acceptance
from foreword.tune.measure import Arm, Bench, TunePrompt
from foreword.tune.recommendation import answer, pair_words, profile_of, winner_config
from foreword.tune.search import LEAST_PAIRS, Outcome, Search, pays


def test_names_of_candidates():
    merged = candidate("suffix+recycling")
    assert merged.config == DraftConfig(method="suffix,recycling", options={"cascade_merge": True})
    assert candidate("eagle3=some+folder").config.path == "some+folder"
    assert candidate("auto").policy == "adaptive"
    assert [c.name for c in parse_candidates("suffix, ngram,none")] == ["suffix", "ngram"]
    assert [c.name for c in default_candidates(None, ["x/small.gguf"])][-1] == "draft_model=small.gguf"


@pytest.mark.parametrize("names", ["", "none", "suffix,suffix"])
def test_lists_that_name_nothing_or_twice(names):
    with pytest.raises(ConfigError, match=r"--drafters is"):
        parse_candidates(names)


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'suffix'"):
        parse_candidates("sufix")


def test_other_settings_differ_from_what_was_measured():
    found = variants(candidate("suffix"), 7, best_k=5)
    assert [v.num_nodes for v in found] == [3, 5, 14, 16, 7]
    assert [v.settings for v in found] == ["3 nodes", "5 nodes", "14 nodes", "adaptive, up to 16", "chain, 7 nodes"]
    assert len({v.label for v in found}) == len(found)
    assert all(v.policy == "adaptive" for v in variants(candidate("auto"), 16))


def stats(drafted, accepted):
    return RequestStats(drafted_at_depth=drafted, accepted_at_depth=accepted)


def test_acceptance_counts_the_tokens_whose_turn_came():
    # 10 steps of 2 tokens: 8 first ones right, then 4 of those 8 second ones
    assert acceptance([stats([10, 10], [8, 4])]) == pytest.approx(12 / 18)
    # only 3 steps drafted a second token: at most those could be judged
    assert acceptance([stats([10, 3], [8, 2])]) == pytest.approx(10 / 13)
    assert acceptance([stats([], [])]) is None


def test_the_arithmetic_of_a_pair():
    pairing = Pairing(True, 100, 100, 0, ("same vocabulary",))
    facts = PairFacts("small", pairing, 10.0, 0.1, tuple([1.0] * 41))
    assert facts.best is None
    assert "not known" in pair_words(facts)[-1]
    known = facts.with_alpha([stats([100, 100, 100, 100], [70, 49, 34, 24])], 4)
    assert known.alpha == pytest.approx(0.7, abs=0.01)
    k, gain = known.best
    assert known.predicted(k) == gain
    assert known.predicted(4) == pytest.approx(2.77 / 1.4, rel=0.02)
    assert all(known.predicted(n) <= gain for n in range(1, 12))
    assert f"{k} tokens per step are best" in pair_words(known)[-1]


def arm_with(pairs, fault=None, name="suffix", per_step=2.0):
    llm = SimpleNamespace(config=DraftConfig(method=name, num_speculative_tokens=7))
    steps = RequestStats(new_tokens=1 + round(100 * per_step), num_steps=100)
    return Arm(candidate(name), llm, pairs=list(pairs), results=[SimpleNamespace(stats=steps)], fault=fault)


def test_what_pays():
    assert pays(arm_with([(1.3, 1.0), (1.2, 1.0), (1.4, 1.0)] * 2))
    assert not pays(arm_with([(1.3, 1.0), (0.6, 1.0), (1.2, 1.0)] * 2)), "may be chance"
    assert not pays(arm_with([(1.01, 1.0)] * 9)), "not worth the trouble"
    assert not pays(arm_with([(1.3, 1.0)] * 9, fault="token 3")), "other tokens"
    assert not pays(arm_with([(1.3, 1.0)] * 5)), "too few pairs"
    assert not pays(arm_with([(1.3, 1.0)] * 9, per_step=1.1)), "more than drafting can give"


@pytest.mark.parametrize(
    ("arm", "begin", "reason"),
    [
        (arm_with([(1.3, 1.0)] * 5), "Too little", "but 5 answers were timed and 6 are needed"),
        (arm_with([(0.9, 1.0)]), "Too little", "0.90 times plain decoding, but 1 answer was timed and 6 are needed"),
        (arm_with([(1.3, 1.0)] * 9, per_step=1.1), "Too little", "with 1.10 tokens per step: the times are noise"),
        (arm_with([(0.9, 1.0)] * 5), "No", "comes to 0.90 times"),
        (arm_with([(0.9, 1.0)] * 9), "No", "comes to 0.90 times"),
        (arm_with([(1.3, 1.0)] * 6), "Yes", "1.30 times as fast"),
    ],
)
def test_too_little_to_tell_is_said(bench, arm, begin, reason):
    words = answer(Outcome(bench, [arm]), "p.json")
    assert words.startswith(begin)
    assert reason in words
    assert ("more prompts (--prompts) or a longer --time-budget" in words) == (begin == "Too little")
    assert (profile_of(Outcome(bench, [arm])).drafter == {"method": "none"}) == (begin != "Yes")


@pytest.fixture(scope="module")
def bench(model):
    return Bench(model, SamplingParams(max_tokens=16, seed=1, ignore_eos=True))


def test_noise_does_not_win_over_what_pays(bench):
    noisy, good = arm_with([(1.3, 1.0)] * 9, per_step=1.1, name="ngram"), arm_with([(1.25, 1.0)] * 9)
    assert Outcome(bench, [noisy, good]).winner is good


def test_nothing_pays_in_words(bench):
    slow, wrong = arm_with([(0.9, 1.0)] * 5), arm_with([(3.0, 1.0)] * 5, fault="token 0", name="ngram")
    outcome = Outcome(bench, [slow, wrong])
    assert outcome.winner is None
    profile = profile_of(outcome)
    assert profile.drafter == {"method": "none"}
    words = answer(outcome, "p.json")
    assert words.startswith("No: nothing is certainly faster on this machine; the best, suffix, comes to 0.90 times")
    assert answer(Outcome(bench, [wrong]), None).startswith("No: no candidate gave the tokens")


def test_arms_are_held_against_plain_decoding(bench, model):
    prompt = TunePrompt(model.tokenizer.encode("abc abc abc abc"))
    good, bad = bench.arm(candidate("suffix")), bench.arm(candidate("ngram"))
    told = []
    bench.run([good], prompt, lambda: told.append(1))
    assert len(told) == 2
    assert good.fault is None
    assert len(good.pairs) == 1
    bad.llm = SimpleNamespace(
        generate=lambda *args, **kwargs: [other_words(LLM.generate(good.llm, *args, **kwargs)[0])]
    )
    bench.run([bad], prompt, lambda: None)
    assert bad.fault is not None
    assert "NOT a near-tie" in bad.fault
    assert bad.pairs == []


def other_words(result):
    scores = sorted(set(range(30)) - {result.token_ids[0]})
    return SimpleNamespace(token_ids=[scores[0], *result.token_ids[1:]], stats=result.stats)


def test_numbers_of_nodes_share_one_drafter(bench, model):
    few, many = (bench.arm(v) for v in variants(candidate("ngram"), 7)[:2])
    assert few.llm is many.llm
    assert (few.num_nodes, many.num_nodes) == (3, 14)
    prompt = TunePrompt(model.tokenizer.encode("bad bad cab bad bad"))
    bench.run([few, many], prompt, lambda: None)
    assert few.results[0].stats.drafted_tokens < many.results[0].stats.drafted_tokens


@pytest.mark.parametrize("name", ["recycling", "suffix+recycling"])
def test_an_answer_that_was_seen_before_is_no_merit(bench, model, name):
    """The table of Token Recycling knows an answer once it was given: each arm has its own, and loses it between rounds."""
    one, other = bench.arm(candidate(name)), bench.arm(candidate(name))
    prompt = TunePrompt(model.tokenizer.encode("bad face cab he"))
    for _ in range(2):
        bench.begin_round([one, other])
        bench.run([one, other], prompt, lambda: None)
    steps = {r.stats.num_steps for arm in (one, other) for r in arm.results}
    assert len(steps) == 1
    bench.run([one], prompt, lambda: None)
    assert one.results[-1].stats.num_steps < min(steps), "or there would be nothing to forget"


class Clock:
    """Time that passes by the answers that are given: each takes `answer_s`."""

    def __init__(self, answer_s: float) -> None:
        self.now_s, self.answer_s = 0.0, answer_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def prompts(model):
    return [TunePrompt(model.tokenizer.encode(text)) for text in ("abc abc abc", "he he face", "gg gg gg gg")]


ANSWERS = {}  # by candidate and prompt: each is given once


def search_of(bench, prompts, budget_s, answer_s, said, monkeypatch):
    clock = Clock(answer_s)
    whole = Bench._answer

    def answer_in_time(self, arm, prompt):
        clock.now_s += clock.answer_s
        key = (arm and arm.candidate.label, tuple(prompt.token_ids))
        if key not in ANSWERS:
            ANSWERS[key] = whole(self, arm, prompt)
        return ANSWERS[key]

    monkeypatch.setattr(Bench, "_answer", answer_in_time)
    monkeypatch.setattr(Bench, "warm_up", lambda *_: None)
    return Search(bench, prompts, budget_s, said.append, lambda: None, clock)


NAMES = ("suffix", "ngram")


def test_the_heats(bench, prompts, monkeypatch):
    said = []
    search = search_of(bench, prompts, 100.0, 0.7, said, monkeypatch)
    outcome = search.run([*map(candidate, NAMES), candidate("draft_model=nowhere")])
    assert "draft_model=nowhere" in outcome.refused
    assert "draft_model=nowhere is left out" in said[0]
    speeds = [arm.speed.value for arm in outcome.arms[:3]]
    assert speeds == sorted(speeds, reverse=True)
    assert all(len(arm.pairs) == 9 for arm in outcome.arms[:3]), "the last heat's alone"
    assert any(arm.candidate.settings for arm in outcome.arms) or max(a.speed.value for a in outcome.arms) < 0.7
    assert all(arm.fault is None for arm in outcome.arms)
    assert not outcome.is_cut


@pytest.mark.parametrize(("budget_s", "answer_s"), [(20.0, 1.0), (7.0, 1.0), (2.5, 1.0), (0.4, 1.0), (60.0, 1.7)])
def test_the_time_budget_is_a_bound(bench, prompts, monkeypatch, budget_s, answer_s):
    """No answer is begun that would end later; only the first one, of which nobody knows how long it takes, may do so."""
    search = search_of(bench, prompts, budget_s, answer_s, [], monkeypatch)
    outcome = search.run(list(map(candidate, NAMES)))
    assert outcome.seconds <= max(budget_s, answer_s) + 1e-9
    words = answer(outcome, None)
    assert words.startswith(("Yes", "No", "Too little to tell"))
    if outcome.is_cut:
        assert outcome.winner is None
        assert words.startswith("Too little to tell"), words


def test_one_prompt_is_asked_as_often_as_a_verdict_needs(bench, prompts, monkeypatch):
    outcome = search_of(bench, prompts[:1], 1000.0, 1.0, [], monkeypatch).run([candidate("suffix")])
    assert len(outcome.arms[0].pairs) == LEAST_PAIRS


def test_the_command(files, tmp_path, capsys):
    out = tmp_path / "p.json"
    asked = ["tune", "--model", str(files.target), "--runtime", "torch", "--dtype", "float32", "--threads", "1"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": 1, "prompt": "abc abc abc abc"}\n{"id": 2, "prompt": "he face he face"}\n')
    options = ["--drafters", "suffix", "--draft-model", str(files.draft), "--time-budget", "60s", "--max-tokens", "6"]
    assert main([*asked, *options, "--prompts", str(prompts), "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["answer"].startswith(("Yes", "No", "Too little"))
    assert found["profile"] == str(out)
    assert all(c["fault"] is None for c in found["candidates"])
    (pair,) = found["pairs"].values()
    assert pair["is_same_vocabulary"]
    assert pair["c"] > 0
    assert 0 < pair["alpha"] <= 1
    profile = read_profile(out)
    assert profile.drafter["method"] == ("none" if found["winner"] is None else found["drafter"]["method"])
    assert "every drafter as it comes" in captured.err
    llm = LLM(str(files.target), profile=out, device="cpu")
    assert llm.config.method == profile.drafter["method"]


def test_the_table_ends_with_the_answer(files, tmp_path, capsys):
    asked = ["tune", "--model", str(files.target), "--runtime", "torch", "--dtype", "float32", "--threads", "1"]
    options = ["--drafters", "ngram", "--time-budget", "60s", "--max-tokens", "6", "--out", str(tmp_path / "p.json")]
    assert main([*asked, *options, "--limit", "1"]) == 0
    captured = capsys.readouterr()
    assert "1 candidate, 1 prompt," in captured.err
    out = " ".join(captured.out.split())
    assert "Times as fast as plain decoding" in out
    assert any(
        text in out for text in ("Yes: ngram", "No: nothing is certainly faster", "Too little to tell: the best, ngram")
    )


MISTAKES = {
    "budget": (["--time-budget", "soon"], "--time-budget is 'soon'"),
    "tokens": (["--max-tokens", "1"], "--max-tokens is 1"),
    "limit": (["--limit", "0"], "--limit is 0; allowed: 1 or above"),
    "out": (["--out", "nowhere/p.json"], "--out is nowhere/p.json"),
    "drafter": (["--drafters", "sufix"], "did you mean 'suffix'"),
}


@pytest.mark.parametrize(("options", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line(options, words, capsys, tmp_path):
    assert main(["tune", *(["--out", str(tmp_path / "p.json")] if "--out" not in options else []), *options]) == 2
    assert words in capsys.readouterr().err


def test_paths_of_a_profile_hold_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e3").mkdir()
    for config, method, path in (
        (DraftConfig(method="eagle3", path="e3"), "eagle3", str(tmp_path / "e3")),
        (DraftConfig(method="suffix,eagle3=e3"), f"suffix,eagle3={tmp_path / 'e3'}", None),
        (DraftConfig(method="eagle3", path="owner/name"), "eagle3", "owner/name"),
    ):
        arm = SimpleNamespace(llm=SimpleNamespace(config=config), num_nodes=5)
        found = winner_config(arm)
        assert (found.method, found.path, found.num_speculative_tokens) == (method, path, 5)
