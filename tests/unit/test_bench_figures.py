"""The benchmark's figures: statistics against known values, prompts and cells as documented."""

import hashlib
import math

import numpy as np
import pytest

from foreword.bench import metrics
from foreword.bench.cells import Mode, make_cells
from foreword.bench.intervals import TOO_LITTLE, Estimate, pooled_rate, ratio_of_rates
from foreword.bench.results import Answer, Run
from foreword.bench.workloads import BenchPrompt, ids_sha256, in_groups, merge_topics, stratified
from foreword.errors import ConfigError

RNG = np.random.default_rng(0)


def answer(**values) -> Answer:
    """An answer of nine tokens in four steps, chains of two."""
    facts = {"prompt": 0, "sha256": "", "new_tokens": 9, "finish_reason": "length", "steps": 4, "drafted_tokens": 8}
    facts |= {"accepted_tokens": 4, "drafted_at_depth": [4, 4], "accepted_at_depth": [3, 1]}
    return Answer(**facts | values)


def run(group=0, repeat=0, tokens=100, seconds=1.0, **values) -> Run:
    facts = {"cell": 0, "prefill_s": 0.1, "draft_s": 0.1 * seconds, "target_s": 0.8 * seconds, "num_passes": 50}
    facts |= {"num_nodes": 150, "answers": [answer()]}
    return Run(**facts | values, group=group, repeat=repeat, decode_tokens=tokens, decode_s=seconds)


def test_a_pooled_rate_is_all_tokens_over_all_seconds():
    assert pooled_rate([10, 90], [1, 1]).value == 50
    assert pooled_rate([7], [2]).value == 3.5
    assert pooled_rate([7], [2]).low is None, "one prompt says nothing of others"


def test_the_interval_of_a_mean_is_the_normal_one():
    amounts = RNG.normal(10, 2, size=400)
    estimate = pooled_rate(list(amounts), [1.0] * 400)
    assert estimate.low is not None
    assert estimate.high is not None
    half = 1.96 * amounts.std() / math.sqrt(400)
    assert estimate.value - estimate.low == pytest.approx(half, rel=0.1)
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.1)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """60 samples of 60 prompts: at 95 % some 57 hold it; fewer than 50 has a chance below 1 in 1,000 (seeded)."""
    held = 0
    for _ in range(60):
        seconds = RNG.gamma(4.0, 1.0, size=60)
        estimate = ratio_of_rates([1.0] * 60, list(seconds), [1.0] * 60, list(2 * RNG.gamma(4.0, 1.0, size=60)))
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= 2.0 <= estimate.high
    assert 50 <= held < 60


def test_pairs_stay_together():
    """Prompts differ tenfold, the ratio hardly: paired intervals see only the ratio."""
    plain = RNG.uniform(1, 10, size=50)
    ahead = plain / 2 * RNG.normal(1, 0.01, size=50)
    estimate = ratio_of_rates([1.0] * 50, list(ahead), [1.0] * 50, list(plain))
    assert estimate.value == pytest.approx(2, rel=0.01)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.high - estimate.low < 0.03
    assert ratio_of_rates([1.0] * 50, list(ahead), [1.0] * 50, list(plain)) == estimate, "the same every time"


def test_a_unit_takes_the_median_pace_of_its_repeats():
    runs = [run(repeat=i, seconds=s) for i, s in enumerate((1.0, 9.0, 2.0))] + [run(group=1, tokens=0)]
    units = metrics.units_of(runs)
    assert units == {0: metrics.Unit(100, 2.0)}
    speed = metrics.tok_per_s(units, [0, 1])
    assert speed is not None
    assert speed.value == 50
    assert metrics.tok_per_s(units, [1]) is None
    ratio = metrics.speedup(units, {0: metrics.Unit(50, 4.0)}, [0])
    assert ratio is not None
    assert ratio.value == pytest.approx(50 / 12.5)


def test_what_a_step_brings_and_where_time_goes():
    answers = [answer(), answer(new_tokens=1, steps=0, drafted_at_depth=[], accepted_at_depth=[])]
    assert metrics.tokens_per_step(answers) == 2
    assert metrics.accept_rate_at_depth([*answers, answer(drafted_at_depth=[4], accepted_at_depth=[1])]) == [0.5, 0.25]
    assert metrics.mean_accept_rate(answers) == 0.5
    assert metrics.mean_accept_rate([answers[1]]) is None
    parts = metrics.ms_per_token([run()])
    assert parts == pytest.approx({"target": 8.0, "drafter": 1.0, "host": 1.0})
    assert metrics.ms_per_pass([run()]) == 20
    assert metrics.nodes_per_pass([run()]) == 3
    assert metrics.tokens_per_pass([run()]) == 2


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.2, "faster"),
        (0.8, 0.99, "slower"),
        (0.99, 1.3, TOO_LITTLE),
        (1.0, 1.3, TOO_LITTLE),
        (0.7, 1.0, TOO_LITTLE),
        (None, None, TOO_LITTLE),
    ],
)
def test_an_interval_that_holds_1_says_nothing(low, high, verdict):
    assert Estimate(1.1, low, high).verdict == verdict


def test_all_figures_of_a_row_are_of_the_runs_that_both_sides_have():
    """A benchmark that was stopped: plain decoding is three rounds ahead, and one prompt ended with its first token."""
    plain = [run(group=g, repeat=r) for r in range(3) for g in range(4)]
    runs = [run(group=g, repeat=0, tokens=200 if g else 0) for g in range(4)] + [run(group=3, repeat=1), run(group=9)]
    own, base = metrics.same_sample(runs, plain)
    assert [(r.group, r.repeat) for r in own] == [(1, 0), (2, 0), (3, 0), (3, 1)]
    assert {(r.group, r.repeat) for r in base} == {(r.group, r.repeat) for r in own}
    assert metrics.same_sample(plain, plain) == (plain, plain)


def test_repeated_4grams():
    assert metrics.repeated_share([1, 2, 3]) is None
    assert metrics.repeated_share(range(20)) == 0
    assert metrics.repeated_share([5] * 14) == pytest.approx(10 / 11)
    assert metrics.repeated_share([1, 2, 3, 4, 9, 1, 2, 3, 4]) == pytest.approx(1 / 6)


def test_the_subset_treats_categories_alike_and_is_always_the_same():
    ids = [f"set/{i}" for i in range(90)]
    categories = ["a"] * 60 + ["b"] * 20 + ["c"] * 10
    chosen = stratified(ids, categories, 12)
    assert [categories[i] for i in chosen] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    ranked = sorted(range(60), key=lambda i: hashlib.sha256(f"set/{i}".encode()).hexdigest())
    assert chosen[:4] == sorted(ranked[:4]), "by the SHA-256 of the id, as documented"
    assert set(stratified(ids, categories, 6)) < set(chosen) < set(stratified(ids, categories, 45))
    assert len(stratified(ids, categories, 45)) == 45
    assert stratified(ids, categories, 500) == list(range(90))
    with pytest.raises(ConfigError, match="allowed: 1 or above"):
        stratified(ids, categories, 0)


def test_topics_of_mt_bench_are_one_task_beside_others():
    assert merge_topics(["math", "qa", None]) == ["mt_bench", "qa", "prompts"]
    assert merge_topics(["math", "stem"]) == ["math", "stem"]


def test_groups_are_of_one_category_and_ids_name_prompts():
    prompts = [BenchPrompt(str(i), "ab"[i % 2], (i,)) for i in range(5)]
    assert in_groups(prompts, 2) == [[0, 2], [4], [1, 3]]
    assert ids_sha256((1, 23)) != ids_sha256((12, 3))


def test_cells_are_what_is_written():
    cells = make_cells(["none", "suffix@16", "suffix+eagle3=a/b+c"], ["match", "typical"], [0.0, 0.7], [1])
    assert [cell.label for cell in cells if cell.mode == Mode(0.7, 1)] == [
        "none", "suffix@16", "suffix+eagle3", "suffix@16 · typical", "suffix+eagle3 · typical",
    ]  # fmt: skip
    assert cells[0].is_baseline
    assert (cells[1].drafter, cells[1].num_speculative_tokens) == ("suffix", 16)
    assert cells[2].drafter == "suffix,eagle3=a/b+c"
    assert {cell.promise for cell in cells if cell.verifier == "typical"} == {"nothing"}
    (greedy,) = [c for c in make_cells(["ngram"], ["rejection"], [0.0], [1]) if not c.is_baseline]
    (sampled,) = [c for c in make_cells(["ngram"], ["rejection"], [0.7], [1]) if not c.is_baseline]
    assert (greedy.promise, sampled.promise) == ("tokens", "law")


@pytest.mark.parametrize(
    ("drafters", "message"), [(["sufix"], "did you mean 'suffix'"), (["ngram", "ngram"], "named twice")]
)
def test_wrong_cells_are_refused(drafters, message):
    with pytest.raises(ConfigError, match=message):
        make_cells(drafters, ["match"], [0.0], [1])
