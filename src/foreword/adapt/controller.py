"""How much to speculate, decided anew from measured time and observed acceptance.

    plan      ask the drafter, unless the request's ledger is overdrawn or asking has not paid lately
    fit       of what it proposes, keep the nodes that bring more than they cost (`choose`)
    observe   pass times refine the cost figures, verdicts the chances; the ledger counts what was saved (`experience`)

Zero nodes is a choice: then the step is a plain one. What is off is tried again now and then, ever more seldom while it
fails, and never by an overdrawn request. Thinking costs time too, so where there is nothing to decide for some steps none is
spent on it: `rest` while nothing is drafted, `stride` while all that is proposed pays.
"""

from collections.abc import Sequence
from dataclasses import replace

from foreword.adapt.acceptance import reach_chances
from foreword.adapt.choose import choose_nodes
from foreword.adapt.cost import PassCosts, costs_of
from foreword.adapt.experience import Experience
from foreword.adapt.ledger import ALLOWED
from foreword.adapt.own_time import OwnTime, counted
from foreword.adapt.rest import MOST_STEPS, Rest
from foreword.adapt.stride import Stride, begin_stride, past_step
from foreword.draft.base import Plan
from foreword.draft.traits import is_looked_up, num_looked_up
from foreword.engine.fixed_policy import FixedController
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

_PROBE_NODES = 3
_BET = 0.5  # of the credit, in one step
_READING = "off for this pass: it reads another request's prompt"
_NOTHING = "nothing to propose"
_LOOKUPS = "lookups alone: a model's time does not come back"


class AdaptiveController:
    """Decides by what pays here and now.

    Args:
        costs: what passes cost on this machine.
        num_nodes: most drafted nodes that the drafter is asked for.
        drafter: its name, for the plans.
    """

    def __init__(self, costs: PassCosts, num_nodes: int, drafter: str) -> None:
        self.known = Experience(costs, drafter)
        self.own = OwnTime()
        self._fixed = FixedController(num_nodes, drafter)
        self._rest, self._stride = Rest(), Stride()
        self._is_looked_up = is_looked_up(drafter)
        self._num_looked_up = num_looked_up(drafter)  # what is still asked where a model's time does not come back

    @property
    def costs(self) -> PassCosts:
        """What passes take, as far as is known by now."""
        return self.known.costs

    @counted("in_step_s")
    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """The most that may be drafted for each; `fit` decides how much of it is read."""
        if self._rest.take(requests):
            return self._rest.plans
        if self._stride.take(requests):
            return self._stride.plans
        self._settle()
        if any(request.is_prefilling for request in requests):
            # Such a pass is bound by arithmetic: nodes are not cheap in it.
            plans = self._fixed.plan(requests)
            return [plan if r.is_prefilling else _off(plan, _READING) for r, plan in zip(requests, plans, strict=True)]
        plans, pauses = [], []
        for request, fixed in zip(requests, self._fixed.plan(requests), strict=True):
            plan, pause = self._plan(request, fixed)
            plans.append(plan)
            pauses.append(pause)
        if (pause := min(pauses, default=0)) > 0:
            contexts = [request.kv_len for request in requests]
            usual_s = self.costs.seconds([plan.num_known for plan in plans], contexts)
            self._rest = Rest(list(requests), plans, pause, usual_s)
            self._rest.take(requests)
        elif len(requests) == 1 and self._may_stride(plans[0]):
            saved_s = self.known.book(requests[0]).ledger.saved_s
            self._stride = begin_stride(requests[0], plans[0], self.known.speedup, saved_s)
            plans = self._stride.plans if self._stride.take(requests) else plans
        return plans

    @counted("after_step_s")
    def forget(self, request: Request) -> None:
        """It has ended, however it did."""
        if request in self._rest.requests or request in self._stride.requests:
            self._settle()
        self.known.books.pop(request.request_id, None)

    @counted("in_step_s")
    def fit(
        self, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
    ) -> tuple[list[Plan], list[DraftTree]]:
        """Plans and trees with the nodes that pay."""
        if self._rest.is_on:
            return list(plans), list(trees)
        if not any(tree.num_drafted for tree in trees):  # the cheap way out: this is every step while drafting is off
            return [_because(plan, _nothing(plan)) if plan.num_nodes else plan for plan in plans], list(trees)
        if self._stride.is_on and self._strides(requests[0], trees[0]):
            return list(plans), list(trees)
        if any(request.is_prefilling for request in requests):
            return list(plans), list(trees)
        known = self.known
        chances = [
            reach_chances(tree, known.calibration, known.book(request).trust)
            for request, tree in zip(requests, trees, strict=True)
        ]
        contexts = [request.kv_len for request in requests]
        first = [tree.num_known for tree in trees]
        plain_rate = len(requests) / (self.costs.seconds(first, contexts) + known.host_s)
        rate = plain_rate * max(1.0, known.speedup)
        most_s = sum(map(self._bet_s, requests)) / len(requests)
        choice = choose_nodes(chances, first, contexts, self.costs, rate, most_s)
        fitted_plans, fitted = [], []
        for request, plan, tree, nodes, own in zip(requests, plans, trees, choice.nodes, chances, strict=True):
            keep, reason = self._kept(request, tree, nodes, own)
            fitted.append(tree if len(keep) == tree.num_drafted else tree.subset([*range(tree.num_known), *keep]))
            fitted_plans.append(_because(plan, reason) if plan.num_nodes else plan)
        return fitted_plans, fitted

    @counted("after_step_s")
    def observe(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        """Learn from a step."""
        if self._rest.is_on:
            return self._rest.add(times, self.own)
        if record.was_prefilling:
            self.own.in_step_s = 0.0
            return None
        past = past_step(requests, record, times, self.own, self.costs.seconds([1], [0]))
        if self._stride.is_on:
            self._stride.past.append(past)
            self._stride.spend(times.draft_s)
        else:
            self.known.learn(requests, past)
        return None

    def _plan(self, request: Request, plan: Plan) -> tuple[Plan, int]:
        """A plan, and for how many steps it stays; 0 where it is to be decided anew."""
        if plan.num_nodes == 0:
            return plan, MOST_STEPS
        known, book = self.known, self.known.book(request)
        missing_s = self.costs.added(request.num_unread, request.kv_len) - known.credit_s(request, book)
        if missing_s > 0:
            steps = missing_s / (ALLOWED * self.costs.seconds([request.num_unread], [request.kv_len]))
            off = _off(plan, "off: so far drafting has cost this request more than it saved")
            return off, min(max(int(steps), 1), MOST_STEPS)
        asking = book.asking
        has_failed = not asking.pays and not asking.is_due and known.asking_costs
        if has_failed and self._num_looked_up == 0:
            off = _off(plan, f"off: drafts have not paid; next try after {asking.gap} steps")
            return off, min(asking.gap - asking.num_without, MOST_STEPS)
        if book.wait > 0:
            return _off(plan, f"off: the last {book.num_vain} questions were in vain; asked now and then"), book.wait
        if self._num_looked_up and (has_failed or -missing_s < known.question_s(request, book)):
            return replace(plan, first_drafters=self._num_looked_up, reason=_LOOKUPS), 0
        return plan, 0

    def _bet_s(self, request: Request) -> float:
        """What a request's drafts may add to this pass: a part of its credit, but one node where it has as much.

        Who bets all of it on one tree is out of the game after a wrong one, however good his chances.
        """
        credit_s = self.known.credit_s(request, self.known.book(request))
        return min(credit_s, max(_BET * credit_s, self.costs.added(request.num_unread, request.kv_len)))

    def _may_stride(self, plan: Plan) -> bool:
        """Lookups only: asking a model at every step is worth a thought at every step."""
        return self._is_looked_up and plan.num_nodes > 0

    def _strides(self, request: Request, tree: DraftTree) -> bool:
        """Whether what it has won pays for this tree, were it all wrong; if not, the stride is over and learnt from."""
        context = [request.kv_len]
        added_s = self.costs.seconds([tree.num_nodes], context) - self.costs.seconds([tree.num_known], context)
        if self._stride.spend(added_s):
            return True
        self._settle()
        return False

    def _kept(self, request: Request, tree: DraftTree, nodes: list[int], chances: list[float]) -> tuple[list[int], str]:
        """Drafted nodes to be read, and why: all where leaving some out would bend a law or break a method."""
        drafted = range(tree.num_known, tree.num_nodes)
        if not drafted:
            return [], _NOTHING
        if tree.has_drawn_nodes or (tree.accept_probs is None and not tree.is_chain):
            return list(drafted), f"all {len(drafted)} nodes: the rule or the method takes this proposal whole"
        fixed = [node for node in drafted if tree.accept_probs is not None and tree.accept_probs[node] == 0.0]
        if nodes:
            expected = sum(chances[node] for node in nodes)
            reason = f"{len(nodes)} of {len(drafted) - len(fixed)} nodes pay: {expected:.1f} more tokens expected"
            return sorted({*nodes, *fixed}), reason
        guesses = sorted((node for node in drafted if node not in fixed), key=lambda node: (-chances[node], node))
        if guesses and self.known.book(request).is_due:
            return sorted({*guesses[:_PROBE_NODES], *fixed}), "a try after a while without drafts"
        best = chances[guesses[0]] if guesses else 0.0
        return fixed, f"no node pays: the best of {len(guesses)} has a chance of {best:.0%}"

    def _settle(self) -> None:
        """Enter in the books what has been done without a thought."""
        rest, self._rest = self._rest, Rest()
        stride, self._stride = self._stride, Stride()
        self.known.learn_rest(rest)
        for past in stride.past:
            self.known.learn(stride.requests, past)


def _nothing(plan: Plan) -> str:
    return f"{_NOTHING}; {plan.reason}" if plan.first_drafters else _NOTHING


def _off(plan: Plan, reason: str) -> Plan:
    return Plan(plan.num_known, 0, 0, plan.drafter, reason)


def _because(plan: Plan, reason: str) -> Plan:
    return Plan(plan.num_known, plan.num_nodes, plan.depth, plan.drafter, reason, plan.first_drafters)


def make(target: Target, num_nodes: int, drafter: str) -> AdaptiveController:
    """For the table of policies. Pass costs are measured the first time that a model runs on this machine."""
    return AdaptiveController(costs_of(target), num_nodes, drafter)
