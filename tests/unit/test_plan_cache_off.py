"""Plans that are used again while drafting is off: when, until when, and that the budgets stay true."""

import pytest

from foreword.adapt.controller import AdaptiveController
from foreword.adapt.plan_cache import MOST_OFF
from foreword.engine.step import StepRecord
from foreword.engine.step_clock import StepTimes
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict
from tests.unit.test_adaptive import MS, FakeRequest, costs


def plain_step(controller, requests, target_s=10 * MS, host_s=1 * MS, draft_s=0.0, **planning):
    """A step in which nothing is proposed; returns the plans."""
    plans = controller.plan(requests)
    trees = [DraftTree.chain([1]) for _ in requests]
    plans, trees = controller.fit(requests, plans, trees)
    for request in requests:
        request.kv_len += 1
    ones = [1] * len(requests)
    record = StepRecord(plans, trees, [Verdict((0,), (), 7) for _ in requests], len(requests), ones, False)
    controller.observe(requests, record, StepTimes(draft_s=draft_s, target_s=target_s, pack_s=host_s, **planning))
    return plans


def asked(plans):
    return any(plan.num_nodes for plan in plans)


def test_a_drafter_that_proposes_nothing_is_asked_rarely_but_goes_on_being_asked():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    were_asked = [asked(plain_step(controller, [request])) for _ in range(400)]
    assert all(were_asked[:8])
    assert sum(were_asked[8:16]) == pytest.approx(4, abs=1)
    late = were_asked[200:]
    assert 0.15 < sum(late) / len(late) < 0.25
    assert (
        "was worth verifying"
        in next(p for p in (plain_step(controller, [request]) for _ in range(9)) if not asked(p))[0].reason
    )


def test_the_budgets_are_those_of_a_controller_that_plans_every_step():
    """Time taken, steps since the last draft, and pass costs, against a controller that is asked about at every step."""
    reusing, planning = AdaptiveController(costs(), 8, "toy"), AdaptiveController(costs(), 8, "toy")
    one, other = FakeRequest.make(0), FakeRequest.make(0)
    for step in range(600):
        target_s = (10 + step % 3) * MS
        plain_step(reusing, [one], target_s, draft_s=0.05 * MS)
        planning._settle()  # forgets its plans
        planning.state(other).num_to_skip = 0  # asks every time
        plain_step(planning, [other], target_s, draft_s=0.05 * MS)
    reusing.plan([one, FakeRequest.make(1)])  # company ends it
    mine, theirs = reusing.state(one), planning.state(other)
    assert mine.budget.taken_s == pytest.approx(theirs.budget.taken_s, rel=0.01)
    assert mine.budget.saved_s == pytest.approx(theirs.budget.saved_s, rel=0.02)
    assert mine.retry.num_skipped == theirs.retry.num_skipped
    assert reusing.costs.seconds([1], [300]) == pytest.approx(planning.costs.seconds([1], [300]), rel=0.03)


def test_an_overdrawn_request_is_off_until_it_has_a_budget():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    state = controller.state(request)
    state.budget.add(0, 10 * MS, 40 * MS)
    num_off = 0
    while not asked(plain_step(controller, [request])):
        num_off += 1
        assert num_off < 1000
    assert num_off > 0
    assert controller._left_s(request) > 0


def test_a_stall_is_no_new_cost():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    for _ in range(60):
        plain_step(controller, [request])
    before = controller.costs.seconds([1], [300])
    while asked(plain_step(controller, [request])) or len(controller._cache.past) > 1:
        pass
    plain_step(controller, [request], target_s=300 * MS)
    for _ in range(6):
        plain_step(controller, [request])
    assert controller.costs.seconds([1], [300]) < 1.3 * before


def test_company_does_not_shorten_what_a_request_skips():
    controller = AdaptiveController(costs(), 8, "toy")
    idle, busy = FakeRequest.make(0), FakeRequest.make(1)
    num_asked = 0
    for _ in range(300):
        controller.state(busy).num_useless = controller.state(busy).num_to_skip = 0  # as if its drafts were read
        num_asked += plain_step(controller, [idle, busy])[0].num_nodes > 0
    assert num_asked < 100


def model_step(controller, requests, draft_s):
    """A step in which all are asked, nothing is proposed, and the drafters take so long."""
    plans = controller.plan(requests)
    trees = [DraftTree.chain([1]) for _ in requests]
    plans, trees = controller.fit(requests, plans, trees)
    record = StepRecord(
        plans, trees, [Verdict((0,), (), 7) for _ in requests], len(requests), [1] * len(requests), False
    )
    took_s = draft_s if asked(plans) else 0.0
    controller.observe(requests, record, StepTimes(draft_s=took_s, target_s=10 * MS, pack_s=MS))
    return plans


def test_anothers_first_proposal_does_not_spoil_a_drafter_that_pays():
    controller = AdaptiveController(costs(), 8, "toy")
    old, new = FakeRequest.make(0), FakeRequest.make(1)
    payoff = controller.state(old).payoff
    payoff.has_begun, payoff.num_proposals, payoff.gain_s = True, 50, 20 * MS
    controller.state(old).budget.saved_s = controller.overall.saved_s = 10.0
    controller.state(new).budget.saved_s = 10.0
    assert asked(model_step(controller, [old, new], 400 * MS))
    assert payoff.gain_s == 20 * MS
    assert controller.state(new).payoff.has_begun


def test_a_model_that_does_not_pay_leaves_lookups_only():
    """Of a cascade, those that run no model are still asked; the reason says so."""
    controller, request = AdaptiveController(costs(), 8, "suffix,eagle3=somewhere"), FakeRequest.make()
    controller.state(request).budget.saved_s = controller.overall.saved_s = 10.0
    plans = [model_step(controller, [request], 5 * MS)[0] for _ in range(60)]
    assert plans[0].first_drafters == 0
    later = [plan for plan in plans[-25:] if plan.num_nodes]
    assert later
    assert any(plan.first_drafters == 1 and "lookups only" in plan.reason for plan in later)


@pytest.mark.parametrize("change", ["another", "fewer", "prefilling"])
def test_plans_are_dropped_when_the_requests_change(change):
    controller = AdaptiveController(costs(), 8, "toy")
    pair = [FakeRequest.make(0), FakeRequest.make(1)]
    while asked(plain_step(controller, pair)) or controller._cache.num_left == 0:
        pass
    if change == "another":
        requests = [pair[0], FakeRequest.make(2)]
    elif change == "fewer":
        controller.forget(pair[1])
        requests = pair[:1]
    else:
        requests = [*pair, FakeRequest.make(3)]
        requests[2].is_prefilling, requests[2].num_unread = True, 5
    plans = controller.plan(requests)
    assert list(controller._cache.requests) in ([], requests), "plans that are kept, if any, are of these"
    assert len(plans) == len(requests)


def test_no_plans_are_kept_longer_than_costs_may_go_unseen():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    controller.state(request).budget.add(0, 10 * MS, 100.0)  # hopeless
    controller.plan([request])
    assert 0 < controller._cache.num_left < MOST_OFF


def test_an_overdrawn_request_comes_back_though_planning_takes_time():
    """While it waits it earns 1 % of a step; what the controller takes meanwhile must not eat that up."""
    controller = AdaptiveController(costs(), 8, "toy")
    state = controller.state(request := FakeRequest.make())
    state.budget.add(0, 10 * MS, 20 * MS)
    num_off = 0
    while not asked(plain_step(controller, [request], plan_s=0.08 * MS, learn_s=0.04 * MS)):
        num_off += 1
        assert num_off < 400, state.budget
    assert num_off > 10
