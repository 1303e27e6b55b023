"""Steps without a thought: when the controller rests, what wakes it, and that its books stay true."""

from types import SimpleNamespace

import pytest

from foreword.adapt import own_time
from foreword.adapt.controller import AdaptiveController
from foreword.adapt.rest import MOST_STEPS
from foreword.engine.step import StepRecord, StepTimes
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict
from tests.unit.test_adaptive import MS, FakeRequest, costs

pytestmark = pytest.mark.usefixtures("without_thinking_time")


def plain_step(controller, requests, target_s=10 * MS, host_s=1 * MS, draft_s=0.0):
    """A step in which nothing comes of the questions; returns the plans."""
    plans = controller.plan(requests)
    trees = [DraftTree.chain([1]) for _ in requests]
    plans, trees = controller.fit(requests, plans, trees)
    for request in requests:
        request.kv_len += 1
    ones = [1] * len(requests)
    record = StepRecord(plans, trees, [Verdict((0,), (), 7) for _ in requests], len(requests), ones, False)
    controller.observe(requests, record, StepTimes(target_s + host_s + draft_s, draft_s, target_s))
    return plans


def asked(plans):
    return any(plan.num_nodes for plan in plans)


def test_vain_questions_become_rare_but_never_stop():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    questions = [asked(plain_step(controller, [request])) for _ in range(400)]
    assert all(questions[:8])
    assert sum(questions[8:16]) == pytest.approx(4, abs=1)
    late = questions[200:]
    assert 0.15 < sum(late) / len(late) < 0.25
    assert "in vain" in next(p for p in (plain_step(controller, [request]) for _ in range(9)) if not asked(p))[0].reason


def test_the_books_of_a_rest_are_those_of_its_steps():
    """Time taken, steps since the last draft, and pass costs, against a controller that is asked about at every step."""
    resting, awake = AdaptiveController(costs(), 8, "toy"), AdaptiveController(costs(), 8, "toy")
    one, other = FakeRequest.make(0), FakeRequest.make(0)
    for step in range(600):
        target_s = (10 + step % 3) * MS
        plain_step(resting, [one], target_s, draft_s=0.05 * MS)
        awake._rest.num_left = 0  # pretends that something has changed
        awake.known.book(other).wait = 0  # asks every time
        plain_step(awake, [other], target_s, draft_s=0.05 * MS)
    resting.plan([one, FakeRequest.make(1)])  # company ends the rest
    mine, theirs = resting.known.book(one), awake.known.book(other)
    assert mine.ledger.taken_s == pytest.approx(theirs.ledger.taken_s, rel=0.01)
    assert mine.ledger.saved_s == pytest.approx(theirs.ledger.saved_s, rel=0.02)
    assert mine.num_plain == theirs.num_plain
    assert resting.costs.seconds([1], [300]) == pytest.approx(awake.costs.seconds([1], [300]), rel=0.03)


def test_an_overdrawn_request_rests_until_it_may_draft_again():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    book = controller.known.book(request)
    book.ledger.add(0, 10 * MS, 40 * MS)
    num_off = 0
    while not asked(plain_step(controller, [request])):
        num_off += 1
        assert num_off < 1000
    assert num_off > 0
    assert book.ledger.credit_s(64 * 11 * MS) > 0


def test_a_stall_in_a_rest_is_no_new_price():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    for _ in range(60):
        plain_step(controller, [request])
    before = controller.costs.seconds([1], [300])
    while asked(plain_step(controller, [request])) or controller._rest.num_steps > 1:
        pass
    plain_step(controller, [request], target_s=300 * MS)
    for _ in range(6):
        plain_step(controller, [request])
    assert controller.costs.seconds([1], [300]) < 1.3 * before


def test_company_does_not_shorten_the_wait_of_a_vain_request():
    controller = AdaptiveController(costs(), 8, "toy")
    vain, busy = FakeRequest.make(0), FakeRequest.make(1)
    num_asked = 0
    for _ in range(300):
        controller.known.book(busy).num_vain = controller.known.book(busy).wait = 0  # as if its drafts were read
        num_asked += plain_step(controller, [vain, busy])[0].num_nodes > 0
    assert num_asked < 100


def model_step(controller, requests, draft_s):
    """A step in which all are asked, in vain, and the drafters take so long."""
    plans = controller.plan(requests)
    trees = [DraftTree.chain([1]) for _ in requests]
    plans, trees = controller.fit(requests, plans, trees)
    record = StepRecord(
        plans, trees, [Verdict((0,), (), 7) for _ in requests], len(requests), [1] * len(requests), False
    )
    took_s = draft_s if asked(plans) else 0.0
    controller.observe(requests, record, StepTimes(11 * MS + took_s, took_s, 10 * MS))
    return plans


def test_anothers_first_question_does_not_spoil_a_drafter_that_pays():
    controller = AdaptiveController(costs(), 8, "toy")
    old, new = FakeRequest.make(0), FakeRequest.make(1)
    asking = controller.known.book(old).asking
    asking.has_begun, asking.num_steps, asking.gain_s = True, 50, 20 * MS
    controller.known.book(old).ledger.saved_s = controller.known.all.saved_s = 10.0
    controller.known.book(new).ledger.saved_s = 10.0
    assert asked(model_step(controller, [old, new], 400 * MS))
    assert asking.gain_s == 20 * MS
    assert controller.known.book(new).asking.has_begun


def test_a_model_that_does_not_pay_leaves_lookups_alone():
    """In a cascade the dear part goes without; the reason says so."""
    controller, request = AdaptiveController(costs(), 8, "suffix,eagle3=somewhere"), FakeRequest.make()
    controller.known.book(request).ledger.saved_s = controller.known.all.saved_s = 10.0
    plans = [model_step(controller, [request], 5 * MS)[0] for _ in range(60)]
    assert plans[0].first_drafters == 0
    later = [plan for plan in plans[-25:] if plan.num_nodes]
    assert later
    assert any(plan.first_drafters == 1 and "lookups alone" in plan.reason for plan in later)


@pytest.mark.parametrize("change", ["another", "fewer", "prefilling"])
def test_a_rest_ends_when_the_requests_change(change):
    controller = AdaptiveController(costs(), 8, "toy")
    pair = [FakeRequest.make(0), FakeRequest.make(1)]
    while asked(plain_step(controller, pair)) or controller._rest.num_left == 0:
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
    assert list(controller._rest.requests) in ([], requests), "what rests now, if anything, are these"
    assert len(plans) == len(requests)


def test_no_rest_is_longer_than_costs_may_go_unseen():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    controller.known.book(request).ledger.add(0, 10 * MS, 100.0)  # hopeless
    controller.plan([request])
    assert 0 < controller._rest.num_left < MOST_STEPS


def test_an_overdrawn_request_comes_back_though_deciding_takes_time(monkeypatch):
    """While it waits it earns 1 % of a step; what the controller takes meanwhile must not eat that up."""
    clock = SimpleNamespace(now_s=0.0)

    def perf_counter():
        clock.now_s += 0.04 * MS  # each call of the controller takes so long, however little it does
        return clock.now_s

    monkeypatch.setattr(own_time, "time", SimpleNamespace(perf_counter=perf_counter))
    controller = AdaptiveController(costs(), 8, "toy")
    book = controller.known.book(request := FakeRequest.make())
    book.ledger.add(0, 10 * MS, 20 * MS)
    num_off = 0
    while not asked(plain_step(controller, [request])):
        num_off += 1
        assert num_off < 400, book.ledger
    assert num_off > 10
