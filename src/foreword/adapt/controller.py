"""How much to speculate, decided anew at every step from measured time and observed acceptance.

    plan      ask the drafter, unless the request's slowdown budget is used up or asking has not paid lately
    fit       of what it proposes, keep the nodes that gain more than they cost
    observe   what the step took corrects the costs, its verdicts the acceptance; the budgets count what was saved

Zero nodes is a choice: then the step is a plain one. What is switched off is retried now and then, ever more seldom while it
fails, and never without a budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foreword.adapt.acceptance import Calibration, judged_edges, reach_probs
from foreword.adapt.budget import GRACE, HORIZON, SHARE, RequestState, SlowdownBudget, charges
from foreword.adapt.cost_model import PassCosts, StepCosts
from foreword.adapt.plan_cache import MOST_OFF, MOST_ON, PastStep, PlanCache
from foreword.adapt.selection import NOTHING, choose_nodes, nodes_to_read
from foreword.adapt.timing import costs_of
from foreword.draft.base import Plan
from foreword.draft.traits import is_looked_up, needs_to_see, num_looked_up, reads_near
from foreword.engine.fixed_policy import FixedController
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

_SHARE_AT_ONCE = 0.5  # of a request's budget, in one pass: with all of it, one wrong tree would end drafting
_NEAR = 64  # tokens that a drafter reads for its first guess which looks at what is near
_REMEMBER = 0.97  # of the speed-up: some thirty steps count
_STALL = 0.1  # of a plain pass: planning that takes more was held up, by a collection of garbage
_PAYS = 1.03  # times plain decoding, lately: then all that is proposed is read
_READING = "off for this pass: it reads another request's prompt"
_OVERDRAWN = "off: drafting has cost this request more than its slowdown budget"
_ALL = f"drafting is faster: all proposals are verified, for {MOST_ON} steps"
_LOOKUPS = "lookups only: the time of a drafter that runs a model does not come back"


@dataclass(frozen=True)
class DrafterTraits:
    """What the policy needs to know of a drafter, or of those of a cascade."""

    num_lookups: int  # of a cascade, drafters before the first that runs a model; 0 where none does
    is_lookup: bool  # none runs a model
    needs_to_see: bool  # one that runs a model guesses only after a pass that it has seen
    reads_near: bool  # none reads a whole text for its first guess

    @classmethod
    def of(cls, drafter: str) -> "DrafterTraits":
        """By its name."""
        return cls(num_looked_up(drafter), is_looked_up(drafter), needs_to_see(drafter), reads_near(drafter))

    def num_first_tokens(self, request: Request) -> int:
        """Tokens that are read for a request's first guess."""
        return min(request.kv_len, _NEAR) if self.reads_near else request.kv_len


class AdaptiveController:
    """Chooses the draft length from measured pass times and observed acceptance.

    Args:
        costs: what passes cost on this machine.
        num_nodes: most drafted nodes that the drafter is asked for.
        drafter: its name, for the plans.
    """

    def __init__(self, costs: PassCosts, num_nodes: int, drafter: str) -> None:
        self.costs, self.steps = costs, StepCosts(costs)
        self.calibration = Calibration()
        self.overall = SlowdownBudget()  # of all requests together
        self.states: dict[int, RequestState] = {}
        self._fixed = FixedController(num_nodes, drafter)
        self._traits = DrafterTraits.of(drafter)
        self._cache = PlanCache()
        # Of the last steps, older ones counting less: tokens emitted, and those of plain steps in the same time.
        self._tokens = self._plain_tokens = 0.0

    def state(self, request: Request) -> RequestState:
        """What is known of one request."""
        return self.states.setdefault(request.request_id, RequestState())

    @property
    def speedup(self) -> float:
        """Tokens of the last steps, over those that plain steps would have brought in their time."""
        return self._tokens / self._plain_tokens if self._plain_tokens else 1.0

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """The most that may be drafted for each; `fit` decides how much of it is read."""
        if self._cache.take(requests):
            return self._cache.plans
        self._settle()
        plans = self._fixed.plan(requests)
        if any(request.is_prefilling for request in requests):
            # Such a pass is bound by arithmetic: nodes are not cheap in it.
            return [plan if r.is_prefilling else _off(plan, _READING) for r, plan in zip(requests, plans, strict=True)]
        decided = [self._plan(request, plan) for request, plan in zip(requests, plans, strict=True)]
        plans, num_steps = [plan for plan, _ in decided], min((num_steps for _, num_steps in decided), default=0)
        is_off = not any(plan.num_nodes for plan in plans)
        if num_steps and (is_off or len(requests) == 1):
            allowance_s = math.inf if is_off else _SHARE_AT_ONCE * self.state(requests[0]).budget.saved_s
            self._cache = PlanCache(list(requests), plans, num_steps, allowance_s)
            self._cache.take(requests)
        return plans

    def fit(
        self, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
    ) -> tuple[list[Plan], list[DraftTree]]:
        """Plans and trees with the nodes that pay."""
        if not any(tree.num_drafted for tree in trees):
            if self._cache.is_used and not plans[0].num_nodes:
                return list(plans), list(trees)
            return [_because(plan, _nothing(plan)) if plan.num_nodes else plan for plan in plans], list(trees)
        if any(request.is_prefilling for request in requests):
            return list(plans), list(trees)
        if self._cache.is_used and self._covers(requests[0], trees[0]):
            return list(plans), list(trees)
        probs = [
            reach_probs(tree, self.calibration, self.state(request).acceptance.factor)
            for request, tree in zip(requests, trees, strict=True)
        ]
        contexts, num_known = [request.kv_len for request in requests], [tree.num_known for tree in trees]
        plain_rate = len(requests) / (self.costs.seconds(num_known, contexts) + self.steps.host_s)
        most_added_s = sum(map(self._most_added_s, requests)) / len(requests)
        rate = plain_rate * max(1.0, self.speedup)
        chosen = choose_nodes(probs, num_known, contexts, self.costs, rate, most_added_s)
        fitted_plans, fitted = [], []
        for request, plan, tree, nodes, own in zip(requests, plans, trees, chosen, probs, strict=True):
            keep, reason = nodes_to_read(tree, nodes, own, self.state(request).retry)
            fitted.append(tree if len(keep) == tree.num_drafted else tree.subset([*range(tree.num_known), *keep]))
            fitted_plans.append(_because(plan, reason) if plan.num_nodes else plan)
        return fitted_plans, fitted

    def observe(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        """Learn from a step."""
        if record.was_prefilling:
            return
        contexts = [request.kv_len - emitted for request, emitted in zip(requests, record.num_emitted, strict=True)]
        past = PastStep(contexts, record, times)
        if self._cache.is_used:
            self._cache.past.append(past)
            self._cache.spend(times.drafter_s)
        else:
            self._learn(requests, past)

    def forget(self, request: Request) -> None:
        """It has ended, however it did."""
        if request in self._cache.requests:
            self._settle()
        self.states.pop(request.request_id, None)

    def _learn(self, requests: Sequence[Request], past: PastStep) -> None:
        """What a step took corrects the costs, its verdicts the acceptance; the budgets count what it has saved."""
        contexts, record, times = past.contexts, past.record, past.times
        num_known = [tree.num_known for tree in record.trees]
        num_drafted = [tree.num_drafted for tree in record.trees]
        added_s = 0.0
        if any(num_drafted):
            num_nodes = [tree.num_nodes for tree in record.trees]
            self.steps.learn_drafted(num_nodes, contexts, times.target_s, times.host_s)
            added_s = self.steps.added_s(num_nodes, num_known, contexts)
            self._judge(requests, record)
        else:
            self.steps.learn_plain(num_known, contexts, times.target_s, times.host_s)
        plain_pass_s = self.costs.seconds(num_known, contexts)
        plain_s = plain_pass_s + self.steps.host_s
        # Planning is part of what speculation costs where a drafter is asked. While it is off it is not charged: it would
        # eat up what a request without a budget earns by waiting, 1 % of a step, and drafting would never come back.
        planning_s = min(times.planning_s + times.learn_s, _STALL * plain_pass_s)
        was_asked = any(plan.num_nodes for plan in record.plans)
        step_s = plain_s + added_s + times.drafter_s + (planning_s if was_asked else 0.0)
        self._tokens = _REMEMBER * self._tokens + sum(record.num_emitted)
        self._plain_tokens = _REMEMBER * self._plain_tokens + len(requests) * step_s / plain_s
        charged = charges(num_drafted, plain_s, step_s)
        for request, emitted, taken_s in zip(requests, record.num_emitted, charged, strict=True):
            self.state(request).budget.add(emitted, plain_s, taken_s)
            self.overall.add(emitted, plain_s, taken_s)
            request.stats.saved_s = self.state(request).budget.saved_s
        saved_s = [emitted * plain_s - taken_s for emitted, taken_s in zip(record.num_emitted, charged, strict=True)]
        self._count(requests, record, times.drafter_s, plain_s, saved_s)

    def _settle(self) -> None:
        """Learn from the steps that used the cached plans, and drop those."""
        cache, self._cache = self._cache, PlanCache()
        for past in cache.past:
            self._learn(cache.requests, past)

    def _plan(self, request: Request, plan: Plan) -> tuple[Plan, int]:
        """A plan, and for how many steps it stays; 0 where each is to be decided anew."""
        if plan.num_nodes == 0:
            return plan, MOST_OFF
        state, num_lookups = self.state(request), self._traits.num_lookups
        left_s = self._left_s(request) - self.costs.added(request.num_unread, 1, request.kv_len)
        if left_s < 0:
            earned_s = SHARE * self.costs.seconds([request.num_unread], [request.kv_len])  # by a plain step
            return _off(plan, _OVERDRAWN), min(1 + int(-left_s / earned_s), MOST_OFF)
        retry = state.payoff.retry
        model_is_off = not state.payoff.pays and not retry.is_due
        if model_is_off and num_lookups == 0:
            reason = f"off: the drafter costs more than its drafts gain; retrying every {retry.num_steps} steps"
            return _off(plan, reason), min(retry.num_left, MOST_OFF)
        if state.num_to_skip:
            reason = f"off: none of the last {state.num_useless} proposals was worth verifying; retrying in {state.num_to_skip} steps"
            return _off(plan, reason), state.num_to_skip
        if num_lookups and (model_is_off or left_s < self._proposal_s(request)):
            return replace(plan, first_drafters=num_lookups, reason=_LOOKUPS), 0
        if self._traits.is_lookup and self.speedup > _PAYS and state.budget.saved_s > 0:
            return replace(plan, reason=_ALL), MOST_ON
        return plan, 0

    def _covers(self, request: Request, tree: DraftTree) -> bool:
        """Whether the allowance covers all nodes of a tree; if not, plans are decided anew from here on."""
        if self._cache.spend(self.costs.added(tree.num_known, tree.num_drafted, request.kv_len)):
            return True
        self._settle()
        return False

    def _left_s(self, request: Request) -> float:
        """What drafting may still cost a request."""
        plain_s = self.costs.seconds([request.num_unread], [request.kv_len])
        to_come_s, budget = min(request.remaining, HORIZON) * plain_s, self.state(request).budget
        if self.overall.left_s(to_come_s) + GRACE * plain_s < 0:
            return budget.own_left_s(to_come_s)
        return budget.left_s(to_come_s, self.overall.reserve_s) + GRACE * plain_s

    def _proposal_s(self, request: Request) -> float:
        """What asking a drafter that runs a model may take; the first time it reads the text."""
        if self.state(request).payoff.has_begun:
            return self.steps.proposal_s
        plain_pass_s = self.costs.seconds([request.num_unread], [request.kv_len])
        return self.steps.first_proposal_s(self._traits.num_first_tokens(request), plain_pass_s)

    def _most_added_s(self, request: Request) -> float:
        """What a request's drafts may add to this pass: half of its budget, but one node where it has as much."""
        left_s = self._left_s(request)
        return min(left_s, max(_SHARE_AT_ONCE * left_s, self.costs.added(request.num_unread, 1, request.kv_len)))

    def _judge(self, requests: Sequence[Request], record: StepRecord) -> None:
        """What became of the drafted nodes corrects their probabilities."""
        for request, tree, verdict in zip(requests, record.trees, record.verdicts, strict=True):
            if tree.num_drafted:
                edges = judged_edges(tree, verdict.path)
                expected = sum(self.calibration(stated) for stated, _ in edges)
                self.state(request).acceptance.add(expected, sum(accepted for _, accepted in edges))
                self.calibration.add(edges)

    def _count(
        self,
        requests: Sequence[Request],
        record: StepRecord,
        drafter_s: float,
        plain_s: float,
        saved_s: Sequence[float],
    ) -> None:
        """Whether asking has paid, and when to ask again."""
        states = [self.state(request) for request in requests]
        asked_all = [plan.num_nodes > 0 and not plan.first_drafters for plan in record.plans]
        ran_model = any(asked_all) and self.steps.ran_model(drafter_s, plain_s)
        could_guess = [not (self._traits.needs_to_see and state.was_off) for state in states]
        begins = [
            ran_model and plan.num_nodes > 0 and not s.payoff.has_begun
            for s, plan in zip(states, record.plans, strict=True)
        ]
        if any(plan.num_nodes for plan in record.plans):
            num_first_tokens = sum(
                self._traits.num_first_tokens(r) for r, begin in zip(requests, begins, strict=True) if begin
            )
            seen_all = any(full and able for full, able in zip(asked_all, could_guess, strict=True))
            self.steps.learn_proposal(drafter_s, num_first_tokens, ran_model, seen_all)
        for i, (state, plan, tree) in enumerate(zip(states, record.plans, record.trees, strict=True)):
            if not tree.num_drafted:
                state.acceptance.add(0.0, 0.0)
            # Another's first proposal says nothing of what this request's own take.
            own_time = ran_model and asked_all[i] and (begins[i] or not any(begins))
            state.count(tree.num_drafted, plan.num_nodes > 0, own_time, saved_s[i], could_guess[i])


def _nothing(plan: Plan) -> str:
    return f"{NOTHING}; {plan.reason}" if plan.first_drafters else NOTHING


def _off(plan: Plan, reason: str) -> Plan:
    return Plan(plan.num_known, 0, 0, plan.drafter, reason)


def _because(plan: Plan, reason: str) -> Plan:
    return Plan(plan.num_known, plan.num_nodes, plan.depth, plan.drafter, reason, plan.first_drafters)


def make(target: Target, num_nodes: int, drafter: str) -> AdaptiveController:
    """For the table of policies. Pass costs are measured the first time that a model runs on this machine."""
    return AdaptiveController(costs_of(target), num_nodes, drafter)
