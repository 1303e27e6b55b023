"""Plans that are used again where drafting pays: when that begins, what ends it, and that budgets and bound hold."""

import random

import pytest

from foreword.adapt.controller import AdaptiveController
from foreword.adapt.plan_cache import MOST_ON, PlanCache
from foreword.engine.step import StepRecord
from foreword.engine.step_clock import StepTimes
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict
from tests.unit.test_adaptive import MS, FakeRequest, costs

DRAFTED = 3


def draft_step(controller, requests, num_right, drafted=DRAFTED, draft_s=0.05 * MS):
    """A step for which chains are proposed whose first `num_right` are; returns what was read of the first request's.

    A pass takes what the figures say.
    """
    plans = controller.plan(requests)
    wanted = [min(drafted, plan.num_nodes) for plan in plans]
    trees = [DraftTree(list(range(n + 1)), [-1, *range(n)], 1, [0.9**depth for depth in range(n + 1)]) for n in wanted]
    plans, trees = controller.fit(requests, plans, trees)
    sizes, contexts = [tree.num_nodes for tree in trees], [request.kv_len for request in requests]
    took_s = costs().seconds(sizes, contexts)
    emitted = [min(num_right, size - 1) + 1 for size in sizes]
    verdicts = [Verdict(tuple(range(n)), (0,) * (n - 1), 7) for n in emitted]
    for request, n in zip(requests, emitted, strict=True):
        request.kv_len += n
        request.remaining -= n
    controller.observe(
        requests,
        StepRecord(plans, trees, verdicts, sum(sizes), emitted, False),
        StepTimes(draft_s=draft_s, target_s=took_s, pack_s=MS),
    )
    return trees[0].num_drafted


def reusing(right=DRAFTED, most=200, request=None):
    """A controller that uses its plans again for the next step, and its request."""
    controller, request = AdaptiveController(costs(), 8, "suffix"), request or FakeRequest.make()
    for _ in range(most):
        draft_step(controller, [request], right)
        if controller._cache.num_left == MOST_ON - 1 and controller._cache.plans[0].num_nodes:
            return controller, request
    raise AssertionError("no plans were kept")


def test_it_begins_where_drafts_pay_and_nowhere_else():
    controller, request = reusing()
    assert "drafting is faster" in controller.plan([request])[0].reason
    with pytest.raises(AssertionError, match="no plans"):
        reusing(right=0)


def test_plans_are_kept_for_a_few_steps():
    controller, request = reusing()
    for _ in range(MOST_ON - 1):
        assert controller._cache.num_left > 0
        assert draft_step(controller, [request], DRAFTED) == DRAFTED
    assert controller._cache.num_left == 0


def test_the_budgets_are_those_of_a_controller_that_plans_every_step(monkeypatch):
    rng = random.Random(5)
    rights = [rng.choice([0, 1, 3, 3]) for _ in range(60)]
    reusing_one, one = AdaptiveController(costs(), 8, "suffix"), FakeRequest.make()
    read = [draft_step(reusing_one, [one], right) for right in rights]
    reusing_one._settle()
    monkeypatch.setattr(PlanCache, "take", lambda *_: False)
    planning, other = AdaptiveController(costs(), 8, "suffix"), FakeRequest.make()
    assert [draft_step(planning, [other], right) for right in rights] == read, (
        "all that is proposed pays, planned or not"
    )
    mine, theirs = reusing_one.state(one), planning.state(other)
    assert mine == theirs
    assert reusing_one.overall == planning.overall
    assert reusing_one.speedup == planning.speedup


def test_drafts_that_turn_wrong_cost_at_most_half_of_what_was_saved():
    for num_good in (30, 60, 120):
        controller, request = AdaptiveController(costs(), 8, "suffix"), FakeRequest.make()
        for _ in range(num_good):
            draft_step(controller, [request], DRAFTED)
        controller._settle()
        budget = controller.state(request).budget
        saved_s = budget.saved_s
        draft_step(controller, [request], 0)
        while controller._cache.num_left:
            draft_step(controller, [request], 0)
        controller._settle()
        assert budget.saved_s > 0.45 * saved_s


def test_a_drafter_that_runs_a_model_is_planned_at_every_step():
    for drafter in ("eagle3", "suffix,eagle3", "draft_model", "one of your own"):
        controller, request = AdaptiveController(costs(), 8, drafter), FakeRequest.make()
        for _ in range(60):
            draft_step(controller, [request], DRAFTED)
            assert controller._cache.num_left == 0, drafter


def test_a_lookup_that_turns_slow_is_not_waited_for_eight_times():
    controller, request = reusing()
    saved_s = controller.state(request).budget.saved_s
    taken_s, num_slow = controller.state(request).budget.taken_s, 0
    while controller._cache.num_left:
        draft_step(controller, [request], 0, draft_s=max(saved_s / 4, MS))
        num_slow += 1
    assert num_slow <= 3
    controller.plan([request])
    assert controller.state(request).budget.taken_s > taken_s + num_slow * saved_s / 4, "what it took is counted"


def test_a_step_with_nothing_to_propose_says_so():
    controller, request = reusing()
    plans = controller.plan([request])
    plans, _ = controller.fit([request], plans, [DraftTree.chain([1])])
    assert plans[0].reason == "nothing to propose"


def test_it_reads_no_tree_that_it_cannot_pay_for():
    controller, request = reusing()
    controller._cache.allowance_s = costs().seconds([1 + DRAFTED], [request.kv_len]) - costs().seconds(
        [1], [request.kv_len]
    )
    controller._cache.allowance_s += 0.1 * MS  # what asking takes
    assert draft_step(controller, [request], 0) == DRAFTED
    assert controller._cache.num_left == MOST_ON - 2
    controller.state(request).budget.saved_s = -1.0  # whoever plans now reads nothing
    assert draft_step(controller, [request], 0) == 0
    assert controller._cache.num_left == 0
    assert controller.state(request).budget.taken_s > 0


def test_company_ends_it_and_leaves_the_budgets_true():
    controller, request = reusing()
    before = controller.state(request).budget.taken_s
    draft_step(controller, [request, FakeRequest.make(1)], DRAFTED)
    assert controller._cache.num_left == 0
    assert controller.state(request).budget.taken_s > before + 2 * 10 * MS


def test_no_deeper_than_what_may_still_come():
    controller, request = reusing()
    request.remaining = 5
    assert controller.plan([request])[0].depth == 4


def test_a_request_that_ends_meanwhile_is_forgotten():
    controller, request = reusing()
    taken_s = controller.overall.taken_s
    controller.forget(request)
    assert not controller.states
    assert controller.overall.taken_s > taken_s
    assert not controller._cache.requests
