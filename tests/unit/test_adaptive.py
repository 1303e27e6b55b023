"""The adaptive controller: chances, costs, choice, slowdown budget; and the promise that it is never slower by more than a little."""

import itertools
import json
import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.adapt import timing
from foreword.adapt.acceptance import Calibration, RequestAcceptance, judged_edges, reach_probs, stated_edges
from foreword.adapt.budget import RetryInterval, SlowdownBudget, charges
from foreword.adapt.controller import AdaptiveController
from foreword.adapt.cost_model import PassCosts
from foreword.adapt.history import HistoryController
from foreword.adapt.selection import choose_nodes, nodes_to_read
from foreword.adapt.timing import VERSION, WIDTHS, kept_costs, measure_costs
from foreword.engine.stats import RequestStats
from foreword.engine.step import StepRecord
from foreword.engine.step_clock import StepTimes
from foreword.sampling.drafting_params import DraftingParams
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict
from tests.support.toy_decoder import ToyDecoder

MS = 1e-3
COSTS = {"widths": [1, 2, 4, 8, 16], "base": [10 * MS, 10.5 * MS, 11 * MS, 13 * MS, 20 * MS], "slope": [1e-6] * 5}


def costs() -> PassCosts:
    return PassCosts(list(COSTS["widths"]), list(COSTS["base"]), list(COSTS["slope"]))


def test_stated_chances_are_trusted_until_shown_wrong():
    calibration = Calibration()
    assert calibration(0.8) == pytest.approx(0.8)
    calibration.add([(0.8, i % 10 < 3) for i in range(400)])
    assert calibration(0.8) == pytest.approx(0.3, abs=0.04)
    assert calibration(0.1) == pytest.approx(0.1), "another bin has seen nothing"


def test_calibration_follows_a_change():
    calibration = Calibration()
    calibration.add([(0.5, True)] * 2000)
    calibration.add([(0.5, False)] * 2000)
    assert calibration(0.5) < 0.15


def test_the_factor_of_a_request_falls_and_recovers():
    acceptance = RequestAcceptance()
    for _ in range(30):
        acceptance.add(2.0, 0.0)
    assert acceptance.factor < 0.2
    for _ in range(60):
        acceptance.add(2.0, 2.0)
    assert acceptance.factor > 0.7


def test_chances_stay_below_the_parents_and_siblings_share_one():
    rng = random.Random(3)
    for _ in range(200):
        n = rng.randint(2, 12)
        parents = [-1, *(rng.randrange(node) for node in range(1, n))]
        probs = [1.0]
        for node in range(1, n):
            probs.append(probs[parents[node]] * rng.random())
        tree = DraftTree(list(range(n)), parents, 1, probs)
        calibration = Calibration()
        calibration.add([(rng.random(), rng.random() < 0.9) for _ in range(100)])
        chances = reach_probs(tree, calibration, 1.5)
        for node in range(1, n):
            assert 0 <= chances[node] <= chances[parents[node]] + 1e-12
        for parent in range(n):
            children = [chances[node] for node in range(1, n) if parents[node] == parent]
            assert sum(children) <= chances[parent] + 1e-9


def test_edges_are_judged_on_the_accepted_path_alone():
    tree = DraftTree([9, 1, 2, 3, 4], [-1, 0, 0, 1, 2], 1, [1.0, 0.6, 0.3, 0.3, 0.2])
    assert stated_edges(tree)[1:] == pytest.approx([0.6, 0.3, 0.5, 0.2 / 0.3])
    assert judged_edges(tree, (0, 1)) == [(0.6, True), (0.3, False), (pytest.approx(0.5), False)]


def test_costs_between_and_beyond_the_measured_widths():
    c = costs()
    assert c.seconds([3], [0]) == pytest.approx(10.75 * MS)
    assert c.seconds([24], [0]) == pytest.approx(27 * MS)
    assert c.seconds([2, 2], [1000, 500]) == pytest.approx(11 * MS + 1.5 * MS)
    for _ in range(60):
        c.refine([1], [0], 20 * MS)
    assert c.seconds([1], [0]) == pytest.approx(20 * MS, rel=0.1)
    assert c.seconds([8], [0]) > 20 * MS, "a machine that became slower is slower at every width"


def test_costs_are_measured_and_kept(tmp_path):
    decoder = ToyDecoder()
    found = measure_costs(decoder, (1, 2, 4))
    assert found.base == sorted(found.base)
    assert min(found.slope) >= 0
    path = tmp_path / "costs.json"
    kept_costs(path, decoder)
    for damaged in ("{}", "[1]", "not JSON"):
        path.write_text(damaged)
        assert kept_costs(path, decoder).widths == list(WIDTHS)
        assert json.loads(path.read_text())["version"] == VERSION


def test_kept_costs_serve_until_they_are_wrong(tmp_path, monkeypatch):
    path, steady = tmp_path / "costs.json", costs()
    monkeypatch.setattr(
        timing,
        "time_passes",
        lambda d, widths, contexts, *_: {(n, c): costs().seconds([n], [c]) for n in widths for c in contexts},
    )
    monkeypatch.setattr(timing, "measure_costs", lambda decoder: steady)
    assert kept_costs(path, ToyDecoder()) is steady
    found = kept_costs(path, ToyDecoder())
    assert found is not steady
    assert found == steady
    busy = {"version": VERSION, "widths": steady.widths, "base": [10 * b for b in steady.base], "slope": steady.slope}
    path.write_text(json.dumps(busy))
    assert kept_costs(path, ToyDecoder()) is steady


def test_a_slow_model_is_looked_at_briefly(tmp_path, monkeypatch):
    """A pass of 2 s: a full look would be 48 of them, and as many of the long context's 512 tokens."""
    looks = []

    def slow_passes(decoder, widths, contexts, rounds, **_):
        looks.append(len(widths) * len(contexts) * (1 + rounds[0]))
        return {(n, c): 200 * costs().seconds([n], [c]) for n in widths for c in contexts}

    monkeypatch.setattr(timing, "time_passes", slow_passes)
    found = kept_costs(tmp_path / "costs.json", ToyDecoder())
    assert sum(looks) <= 8
    assert found.seconds([1], [32]) == pytest.approx(2.0, rel=0.01)
    assert found.seconds([16], [32]) > found.seconds([4], [32]) > 2.0
    looks.clear()
    assert kept_costs(tmp_path / "costs.json", ToyDecoder()) == found
    assert sum(looks) <= 2


def test_costs_of_a_model_with_a_tiny_context():
    assert max(measure_costs(ToyDecoder(8, context_len=12)).widths) < 12


def brute_force(chances, first, contexts, c, rate):
    """The best closed set of nodes over all subsets."""
    pool = [(r, n) for r, own in enumerate(chances) for n in range(first[r], len(own))]
    best = (0.0, ())
    for size in range(len(pool) + 1):
        for kept in itertools.combinations(pool, size):
            sizes = [f + sum(r == i for r, _ in kept) for i, f in enumerate(first)]
            gain = sum(chances[r][n] for r, n in kept) / rate
            gain -= c.seconds(sizes, contexts) - c.seconds(first, contexts)
            best = max(best, (gain, kept), key=lambda option: option[0])
    return best[0]


def test_the_choice_is_the_best_of_all():
    rng = random.Random(5)
    for _ in range(60):
        chances = []
        for _ in range(rng.randint(1, 2)):
            own = [1.0]
            for _ in range(rng.randint(1, 4)):
                own.append(rng.choice(own) * rng.random())
            chances.append(own)
        first, contexts = [1] * len(chances), [100] * len(chances)
        rate = rng.uniform(60, 300)
        chosen = choose_nodes(chances, first, contexts, costs(), rate)
        sizes = [1 + len(nodes) for nodes in chosen]
        expected = sum(own[node] for own, nodes in zip(chances, chosen, strict=True) for node in nodes)
        gain = expected / rate - costs().seconds(sizes, contexts) + costs().seconds(first, contexts)
        assert gain == pytest.approx(brute_force(chances, first, contexts, costs(), rate), abs=1e-12)


def test_nothing_is_kept_that_does_not_pay():
    assert choose_nodes([[1.0, 0.01, 0.01]], [1], [0], costs(), 100.0) == [[]]
    assert choose_nodes([[1.0, 0.9, 0.8]], [1], [0], costs(), 100.0) == [[1, 2]]


def test_charges_of_a_batch_add_up_and_fall_on_who_drafted():
    shares = charges([3, 0, 1], 10.0, 14.0)
    assert sum(shares) == pytest.approx(3 * 14.0)
    assert shares[1] == 10.0
    assert charges([0, 0], 10.0, 11.0) == [11.0, 11.0]


def test_an_overdrawn_budget_recovers_with_time():
    budget = SlowdownBudget()
    budget.add(1, 1.0, 1.05)
    assert budget.left_s() < 0
    assert budget.left_s(to_come_s=6.0) > 0
    for _ in range(10):
        budget.add(1, 1.0, 1.0)
    assert budget.left_s() > 0


def test_what_others_saved_raises_the_budget_by_two_percent_at_most():
    budget = SlowdownBudget()
    budget.add(100, 1.0, 100.0)
    assert budget.left_s(0.0, 1e6) - budget.left_s() == pytest.approx(2.0)
    assert budget.left_s(0.0, 0.2) - budget.left_s() == pytest.approx(0.2)
    to_come = SlowdownBudget().left_s(64.0, 1e6) - SlowdownBudget().left_s(64.0)
    assert to_come == pytest.approx(1.28), "of what is to come too: it was saved already, and a beginning costs most"


def test_of_what_was_saved_only_some_is_there_to_be_tried_with():
    budget = SlowdownBudget()
    for _ in range(100):
        budget.add(3, 1.0, 1.5)
    assert budget.saved_s == pytest.approx(150)
    assert budget.reserve_s == 32
    budget.add(1, 1.0, 31.0)
    assert budget.reserve_s == pytest.approx(2)
    budget.add(1, 1.0, 10.0)
    assert budget.reserve_s == 0, "never less than nothing"
    assert budget.left_s() > 100, "though all in all much was saved"


def test_no_draft_costs_more_than_may_be_lost():
    chances = [[1.0, 0.99, 0.98, 0.97, 0.96]]
    assert choose_nodes(chances, [1], [0], costs(), 100.0, most_added_s=1.2 * MS) == [[1, 2, 3]]
    assert choose_nodes(chances, [1], [0], costs(), 100.0, most_added_s=0.1 * MS) == [[]]


class FakeRequest(SimpleNamespace):
    """As much of a request as the controller reads."""

    @classmethod
    def make(cls, request_id=0):
        return cls(
            request_id=request_id,
            kv_len=100,
            num_unread=1,
            remaining=10_000,
            is_prefilling=False,
            is_finished=False,
            drafting=DraftingParams(),
            stats=RequestStats(),
        )


def simulate(
    acceptance, stated, *, draft_s=0.0, steps=600, seed=0, true_cost=None, noise=0.03, host_s=0.0, mood=lambda _: 1.0,
    request=None,
):  # fmt: skip
    """Time without the controller over time with it, for chains whose edges are accepted with `acceptance(step)`.

    `request`, where it is given, has ended afterwards, and is told the seconds without and with.
    """
    rng = random.Random(seed)
    truth = true_cost or costs()
    controller = AdaptiveController(costs(), 8, "toy")
    request = request or FakeRequest.make()
    spent = plain = 0.0
    drafted_steps = 0
    for step in range(steps):
        (plan,) = controller.plan([request])
        asked = plan.num_nodes > 0
        length = plan.num_nodes if asked else 0
        probs = [1.0]
        for _ in range(length):
            probs.append(probs[-1] * stated)
        proposed = DraftTree(list(range(length + 1)), list(range(-1, length)), 1, probs)
        (plan,), (tree,) = controller.fit([request], [plan], [proposed])
        accepted = 0
        while accepted < tree.num_drafted and rng.random() < acceptance(step):
            accepted += 1
        target_s = truth.seconds([tree.num_nodes], [request.kv_len]) * (1 + rng.gauss(0, noise))
        used_s = draft_s if asked else 0.0
        beside_s = host_s if tree.num_drafted else 0.0
        plain += truth.seconds([1], [request.kv_len]) * (accepted + 1)
        spent += target_s + used_s + beside_s
        target_s *= mood(step)  # of the machine: with drafts or without
        drafted_steps += tree.num_drafted > 0
        request.kv_len = 100 + (step * 3) % 400 + accepted + 1
        record = StepRecord(
            [plan], [tree], [Verdict(tuple(range(accepted + 1)), tuple(range(1, accepted + 1)), 7)], tree.num_nodes,
            [accepted + 1], False,
        )  # fmt: skip
        controller.observe([request], record, StepTimes(draft_s=used_s, target_s=target_s, pack_s=beside_s))
    controller.forget(request)
    request.plain_s, request.spent_s = plain, spent
    return plain / spent, drafted_steps / steps


@pytest.mark.parametrize("chance", [0.0, 0.9])
def test_a_request_is_told_what_drafting_has_saved_it(chance):
    request = FakeRequest.make()
    simulate(lambda step: chance, 0.9, request=request)
    saved_s = request.plain_s - request.spent_s
    assert request.stats.saved_s == pytest.approx(saved_s, abs=0.03 * request.plain_s)


@pytest.mark.parametrize("draft_s", [0.0, 0.5 * MS, 3 * MS])
@pytest.mark.parametrize("stated", [0.3, 0.9])
def test_an_always_wrong_drafter_costs_less_than_two_percent(draft_s, stated):
    speed, _ = simulate(lambda step: 0.0, stated, draft_s=draft_s)
    assert speed >= 0.98


def test_a_good_drafter_is_used_nearly_in_full():
    speed, share = simulate(lambda step: 0.9, 0.9)
    assert share > 0.95
    best = max((1 - 0.9 ** (k + 1)) / 0.1 * 10.1 / (costs().seconds([k + 1], [100]) / MS) for k in range(9))
    assert speed > 0.93 * best


def test_a_drafter_that_is_better_than_it_says_is_found_out():
    speed, _ = simulate(lambda step: 0.9, 0.15, steps=1500)
    assert speed > 2.0


def test_it_comes_back_when_the_text_turns():
    bad, _ = simulate(lambda step: 0.0, 0.7, steps=400, draft_s=1 * MS)
    turned, share = simulate(lambda step: 0.0 if step < 400 else 0.95, 0.7, steps=1600, draft_s=1 * MS)
    assert bad >= 0.98
    assert share > 0.5
    assert turned > 1.8


def test_wrong_cost_figures_are_corrected():
    """The machine is three times slower at width than was measured: drafting must stop where it loses."""
    truth = PassCosts([1, 2, 4, 8, 16], [10 * MS, 20 * MS, 40 * MS, 80 * MS, 160 * MS], [0.0] * 5)
    speeds = [simulate(lambda step: 0.5, 0.5, true_cost=truth, steps=1000, seed=seed)[0] for seed in range(4)]
    assert sum(speeds) / len(speeds) >= 0.97


@pytest.mark.parametrize("times", [3.0, 10.0, 100.0])
def test_stalls_of_the_machine_do_not_end_drafting(times):
    """One pass in forty stands still for a while, whatever it reads: no reason to draft less."""
    calm, used = simulate(lambda step: 0.8, 0.8)
    speed, share = simulate(lambda step: 0.8, 0.8, mood=lambda step: times if step % 40 == 7 else 1.0)
    assert share >= 0.9 * used
    assert speed >= 0.95 * calm


def test_what_drafts_cost_beside_the_pass_counts():
    """Half a plain pass of bookkeeping for each draft: drafting must stop."""
    host_s = 0.5 * costs().seconds([1], [100])
    speed, _ = simulate(lambda step: 0.2, 0.2, host_s=host_s, steps=1000)
    assert speed >= 0.97


def test_nodes_that_are_no_guesses_stay_and_are_not_judged():
    """Lookahead's window is read to solve for later tokens: stated as 0, never cut, no evidence about guesses."""
    controller = AdaptiveController(costs(), 8, "toy")
    request = FakeRequest.make()
    (plan,) = controller.plan([request])
    tree = DraftTree([0, 1, 2, 3], [-1, 0, 1, 0], 1, [1.0, 0.0, 0.0, 0.02])
    (fitted,), (kept,) = controller.fit([request], [plan], [tree])
    assert kept.token_ids == [0, 1, 2]
    assert "no node gains more than it costs: the best of 1" in fitted.reason
    assert judged_edges(tree, (0,)) == [(pytest.approx(0.02), False)]


def test_a_pass_that_reads_a_prompt_drafts_nothing():
    controller = AdaptiveController(costs(), 8, "toy")
    reading, decoding = FakeRequest.make(0), FakeRequest.make(1)
    reading.is_prefilling = True
    reading.num_unread = 300
    first, second = controller.plan([reading, decoding])
    assert (first.num_known, second.num_nodes) == (300, 0)
    assert "reads another request's prompt" in second.reason


def test_a_full_batch_does_not_set_the_price_for_one():
    """After eight requests have run together, one alone is valued by what it can reach alone."""
    controller = AdaptiveController(costs(), 8, "toy")
    batch = [FakeRequest.make(i) for i in range(8)]
    for _ in range(50):
        plans = controller.plan(batch)
        trees = [DraftTree([0], [-1]) for _ in batch]
        seconds = costs().seconds([1] * 8, [100] * 8)
        record = StepRecord(plans, trees, [Verdict((0,), (), 7)] * 8, 8, [1] * 8, False)
        controller.observe(batch, record, StepTimes(target_s=seconds))
    (plan,) = controller.plan(batch[:1])
    tree = DraftTree([0, 1], [-1, 0], 1, [1.0, 0.3])
    _, (kept,) = controller.fit(batch[:1], [plan], [tree])
    assert kept.num_drafted == 1


def test_ended_requests_are_forgotten():
    controller = AdaptiveController(costs(), 8, "toy")
    request = FakeRequest.make(5)
    controller.plan([request])
    assert controller.states
    controller.forget(request)
    assert not controller.states


def test_costs_serve_where_nothing_can_be_written(tmp_path, caplog):
    caplog.set_level("INFO", logger="foreword")
    (tmp_path / "file").write_text("")
    assert kept_costs(tmp_path / "file" / "costs.json", ToyDecoder()).widths == list(WIDTHS)
    assert "could not be kept" in caplog.text


def test_history_keeps_within_what_a_request_allows():
    controller = HistoryController(7, "toy")
    request = FakeRequest.make()
    request.drafting = DraftingParams(num_speculative_tokens=2)
    for accepted in (2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0):
        (plan,) = controller.plan([request])
        assert 1 <= plan.num_nodes <= 2
        tree = DraftTree.chain([0], list(range(1, plan.num_nodes + 1)))
        taken = tuple(range(1, min(accepted, plan.num_nodes) + 1))
        record = StepRecord([plan], [tree], [Verdict((0, *taken), taken, 9)], tree.num_nodes, [len(taken) + 1], False)
        controller.observe([request], record, StepTimes(target_s=0.01))
    assert controller.plan([request])[0].num_nodes == 1
    controller.forget(request)
    assert controller.plan([request])[0].num_nodes == 2


def test_reasons_are_in_words():
    controller = AdaptiveController(costs(), 8, "toy")
    request = FakeRequest.make()
    (plan,) = controller.plan([request])
    tree = DraftTree([0, 1, 2], [-1, 0, 1], 1, [1.0, 0.9, 0.8])
    (fitted,), _ = controller.fit([request], [plan], [tree])
    assert fitted.reason == "2 of 2 nodes gain more than they cost: 1.7 more tokens expected"
    weak = DraftTree([0, 1], [-1, 0], 1, [1.0, 0.01])
    (fitted,), (kept,) = controller.fit([request], [plan], [weak])
    assert kept.num_drafted == 0
    assert "no node gains more than it costs" in fitted.reason


@pytest.mark.parametrize(
    ("drafter", "grows"), [("suffix,eagle3=x", False), ("medusa", False), ("suffix,draft_model=x", True)]
)
def test_a_first_proposal_costs_what_is_read_for_it(drafter, grows):
    """A draft model reads the whole text, a layer on the target's states what is near."""
    controller = AdaptiveController(costs(), 8, drafter)
    short, long = FakeRequest.make(1), FakeRequest.make(2)
    long.kv_len = 5000
    asked = [controller._proposal_s(request) for request in (short, long)]
    assert asked[0] > 0
    assert (asked[1] > 10 * asked[0]) == grows
    if not grows:
        assert asked[1] < 2 * asked[0], "a plain step, of which it is thought to be a part, takes longer too"


@settings(max_examples=60)
@given(st.data())
def test_nodes_that_a_method_must_keep_bring_the_nodes_above_them(data):
    """In a merged tree a node without a stated chance (lookahead's window) may hang below another drafter's guess."""
    num_drafted = data.draw(st.integers(1, 12))
    parents = [-1, *(data.draw(st.integers(0, node - 1)) for node in range(1, num_drafted + 1))]
    stated = [1.0, *(data.draw(st.sampled_from([0.0, 0.2, 0.9])) for _ in range(num_drafted))]
    tree = DraftTree(list(range(num_drafted + 1)), parents, 1, stated)
    reached = [1.0]
    for node in range(1, num_drafted + 1):
        reached.append(min(stated[node], reached[parents[node]]))
    paying = [node for node in range(1, num_drafted + 1) if reached[node] > 0.5]
    keep, _ = nodes_to_read(tree, paying, reached, RetryInterval())
    assert all(tree.parents[node] == 0 or tree.parents[node] in keep for node in keep)
    assert {node for node in range(1, num_drafted + 1) if stated[node] == 0.0} | set(paying) <= set(keep)
    tree.subset([0, *keep]).check()
