"""Steps without a thought: when the controller rests, what wakes it, and that its books stay true."""

import pytest

from foreword.adapt.controller import AdaptiveController
from foreword.adapt.rest import MOST_STEPS
from foreword.engine.step import StepRecord, StepTimes
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict
from tests.unit.test_adaptive import MS, FakeRequest, costs


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
        awake._book(other).wait = 0  # asks every time
        plain_step(awake, [other], target_s, draft_s=0.05 * MS)
    resting.plan([one, FakeRequest.make(1)])  # company ends the rest
    mine, theirs = resting._book(one), awake._book(other)
    assert mine.ledger.taken_s == pytest.approx(theirs.ledger.taken_s, rel=0.01)
    assert mine.ledger.saved_s == pytest.approx(theirs.ledger.saved_s, rel=0.02)
    assert mine.num_plain == theirs.num_plain
    assert resting.costs.seconds([1], [300]) == pytest.approx(awake.costs.seconds([1], [300]), rel=0.03)


def test_an_overdrawn_request_rests_until_it_may_draft_again():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    book = controller._book(request)
    book.ledger.add(0, 10 * MS, 40 * MS)
    num_off = 0
    while not asked(plain_step(controller, [request])):
        num_off += 1
        assert num_off < 1000
    assert num_off > 0
    assert book.ledger.credit_s(64 * 11 * MS) > 0


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
    assert not controller._rest.is_on
    assert len(plans) == len(requests)


def test_no_rest_is_longer_than_costs_may_go_unseen():
    controller, request = AdaptiveController(costs(), 8, "toy"), FakeRequest.make()
    controller._book(request).ledger.add(0, 10 * MS, 100.0)  # hopeless
    controller.plan([request])
    assert 0 < controller._rest.num_left < MOST_STEPS
