"""How much to speculate, decided anew at every step from measured time and observed acceptance.

    plan      ask the drafter, unless the request's ledger is overdrawn or asking has not paid lately
    fit       of what it proposes, keep the nodes that bring more than they cost (`choose`)
    observe   pass times refine the cost figures, verdicts the chances; the ledger counts what was saved

Zero nodes is a choice: then the step is a plain one. What is off is tried again now and then, ever more seldom while it
fails, and never by an overdrawn request.
"""

from collections.abc import Sequence
from dataclasses import replace

from foreword.adapt.acceptance import Calibration, judged_edges, reach_chances
from foreword.adapt.book import SMOOTH, Book
from foreword.adapt.choose import choose_nodes
from foreword.adapt.cost import PassCosts, costs_of
from foreword.adapt.ledger import ALLOWED, Ledger, charges
from foreword.adapt.own_time import OwnTime, counted
from foreword.adapt.rest import MOST_STEPS, Rest
from foreword.draft.base import Plan
from foreword.draft.registry import needs_to_see, num_looked_up, reads_near
from foreword.engine.controller import FixedController
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict

_PROBE_NODES = 3
_REMEMBER = 0.97
_CHEAP = 0.08  # of a plain step: up to here the ledger alone says when to stop asking
_UNKNOWN = 0.005  # of a plain pass, for each token of the text: what reading it is thought to take before it is known
_NEAR = 64  # tokens of a text that a drafter reads which looks at what is near
_TRUSTED = 8  # questions that cost next to nothing before that is taken for the rule
_FADE = 0.01  # how fast a dear drafter's time is forgotten in steps that did without it
_HORIZON = 64  # plain steps that a request may borrow against
_READING = "off for this pass: it reads another request's prompt"
_NOTHING = "nothing to propose"
_LOOKUPS = "lookups alone: a model's time does not come back"
_BELIEVED, _FOLLOW = 1.25, 0.2  # how far a single pass may be off, and how fast that moves


class AdaptiveController:
    """Decides by what pays here and now.

    Args:
        costs: what passes cost on this machine.
        num_nodes: most drafted nodes that the drafter is asked for.
        drafter: its name, for the plans.
    """

    def __init__(self, costs: PassCosts, num_nodes: int, drafter: str) -> None:
        self.costs = costs
        self.calibration = Calibration()
        self._fixed = FixedController(num_nodes, drafter)
        self._books: dict[int, Book] = {}
        self._draft_s = 0.0  # of a step that asks the drafter, smoothed
        self._begin_s = 0.0  # of a request's first question to a drafter that runs a model, for each token of its text
        self._num_cheap = 0  # full questions that took next to no time
        self._all = Ledger()  # of all requests together
        self.own = OwnTime()
        self._rest = Rest()
        self._num_looked_up = num_looked_up(drafter)  # what is still asked where a model's time does not come back
        self._needs_to_see, self._reads_near = needs_to_see(drafter), reads_near(drafter)
        # Of the last steps, older ones counting less: tokens emitted, and those of plain steps in the same time.
        self._tokens = self._plain_tokens = 0.0
        self._lately = 1.0  # times what passes with drafted nodes should take, smoothed
        # Of a plain step, and of one with drafts, beside drafter and target, smoothed.
        self._host_s = self._drafted_host_s = 0.0

    @counted("in_step_s")
    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """The most that may be drafted for each; `fit` decides how much of it is read."""
        if self._rest.take(requests):
            return self._rest.plans
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
        return plans

    @counted("after_step_s")
    def forget(self, request: Request) -> None:
        """It has ended, however it did."""
        if request in self._rest.requests:
            self._settle()
        self._books.pop(request.request_id, None)

    @counted("in_step_s")
    def fit(
        self, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
    ) -> tuple[list[Plan], list[DraftTree]]:
        """Plans and trees with the nodes that pay."""
        if self._rest.is_on:
            return list(plans), list(trees)
        if not any(tree.num_drafted for tree in trees):  # the cheap way out: this is every step while drafting is off
            return [_because(plan, _nothing(plan)) if plan.num_nodes else plan for plan in plans], list(trees)
        if any(request.is_prefilling for request in requests):
            return list(plans), list(trees)
        chances = [
            reach_chances(tree, self.calibration, self._book(request).trust)
            for request, tree in zip(requests, trees, strict=True)
        ]
        contexts = [request.kv_len for request in requests]
        first = [tree.num_known for tree in trees]
        plain_rate = len(requests) / (self.costs.seconds(first, contexts) + self._host_s)
        rate = plain_rate * max(1.0, self._tokens / self._plain_tokens if self._plain_tokens else 1.0)
        credits = [self._credit_s(request, self._book(request)) for request in requests]
        choice = choose_nodes(chances, first, contexts, self.costs, rate, sum(credits) / len(credits))
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
        learn = self._learn_drafted if any(tree.num_drafted for tree in record.trees) else self._learn_plain
        return learn(requests, record, times)

    def _plan(self, request: Request, plan: Plan) -> tuple[Plan, int]:
        """A plan, and for how many steps it stays; 0 where it is to be decided anew."""
        if plan.num_nodes == 0:
            return plan, MOST_STEPS
        book = self._book(request)
        missing_s = self.costs.added(request.num_unread, request.kv_len) - self._credit_s(request, book)
        if missing_s > 0:
            steps = missing_s / (ALLOWED * self.costs.seconds([request.num_unread], [request.kv_len]))
            off = _off(plan, "off: so far drafting has cost this request more than it saved")
            return off, min(max(int(steps), 1), MOST_STEPS)
        asking = book.asking
        has_failed = not asking.pays and not asking.is_due and self._asking_costs
        if has_failed and self._num_looked_up == 0:
            off = _off(plan, f"off: drafts have not paid; next try after {asking.gap} steps")
            return off, min(asking.gap - asking.num_without, MOST_STEPS)
        if book.wait > 0:
            return _off(plan, f"off: the last {book.num_vain} questions were in vain; asked now and then"), book.wait
        if self._num_looked_up and (has_failed or -missing_s < self._question_s(request, book)):
            return replace(plan, first_drafters=self._num_looked_up, reason=_LOOKUPS), 0
        return plan, 0

    @property
    def _asking_costs(self) -> bool:
        """Whether the drafter's own time counts; where it does not, only its nodes have to pay."""
        return self._draft_s > _CHEAP * self.costs.seconds([1], [0])

    def _question_s(self, request: Request, book: Book) -> float:
        """What asking a drafter that runs a model may take; the first time it reads the whole text."""
        if book.asking.has_begun or (not self._begin_s and self._num_cheap >= _TRUSTED):
            return self._draft_s
        unknown_s = _UNKNOWN * self.costs.seconds([request.num_unread], [request.kv_len])
        return (self._begin_s or unknown_s) * self._begin_len(request)

    def _begin_len(self, request: Request) -> int:
        """Tokens that are read for a request's first guess."""
        return min(request.kv_len, _NEAR) if self._reads_near else request.kv_len

    def _credit_s(self, request: Request, book: Book) -> float:
        """What drafting may still cost a request."""
        plain_s = self.costs.seconds([request.num_unread], [request.kv_len])
        if self._all.credit_s() < 0:
            return book.ledger.saved_s
        return book.ledger.credit_s(min(request.remaining, _HORIZON) * plain_s, self._all.spare_s)

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
        if guesses and self._book(request).is_due:
            return sorted({*guesses[:_PROBE_NODES], *fixed}), "a try after a while without drafts"
        best = chances[guesses[0]] if guesses else 0.0
        return fixed, f"no node pays: the best of {len(guesses)} has a chance of {best:.0%}"

    def _settle(self) -> None:
        """Enter a rest in the books: plain steps, which have saved nothing."""
        rest, self._rest = self._rest, Rest()
        num_steps = rest.num_steps
        if num_steps == 0:
            return
        self._host_s = _smoothed(self._host_s, rest.host_s / num_steps)
        contexts = [request.kv_len for request in rest.requests]
        pass_s = self.costs.refine([1] * len(contexts), contexts, rest.target_s / num_steps, num_steps)
        taken_s = num_steps * (pass_s + self._host_s) + rest.draft_s
        self._tokens = _REMEMBER**num_steps * self._tokens + num_steps * len(contexts)
        self._plain_tokens = _REMEMBER**num_steps * self._plain_tokens + num_steps * len(contexts)
        for request in rest.requests:
            book = self._book(request)
            book.trust.add(0.0, 0.0, num_steps)
            book.num_plain += num_steps
            book.wait, book.was_off = max(book.wait - num_steps, 0), True
            book.asking.num_without += num_steps
            for ledger in (book.ledger, self._all):
                ledger.add(num_steps, pass_s + self._host_s, taken_s)

    def _learn_plain(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        """Of a step without drafted nodes: all it can have lost is the drafter's time and the controller's own."""
        contexts = [request.kv_len - emitted for request, emitted in zip(requests, record.num_emitted, strict=True)]
        own_s, host_s = self.own.split(times.host_s, self.costs.seconds([1], [0]))
        self._host_s = _smoothed(self._host_s, host_s)
        pass_s = self.costs.refine([tree.num_known for tree in record.trees], contexts, times.target_s)
        plain_s = pass_s + self._host_s
        was_asked = any(plan.num_nodes for plan in record.plans)
        step_s = plain_s + times.draft_s + (own_s if was_asked else 0.0)
        self._count_step(requests, record, [step_s] * len(requests), plain_s, step_s, times.draft_s)

    def _learn_drafted(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        contexts = [request.kv_len - emitted for request, emitted in zip(requests, record.num_emitted, strict=True)]
        sizes = [tree.num_nodes for tree in record.trees]
        drafted = [tree.num_drafted for tree in record.trees]
        own_s, host_s = self.own.split(times.host_s, self.costs.seconds([1], [0]))
        self._drafted_host_s = _smoothed(self._drafted_host_s, host_s)
        self.costs.refine(sizes, contexts, times.target_s)
        plain_pass_s = self.costs.seconds([tree.num_known for tree in record.trees], contexts)
        plain_s = plain_pass_s + self._host_s
        added_host_s = max(self._drafted_host_s - self._host_s, 0.0)
        added_s = self._pass_s(sizes, contexts, times.target_s) - plain_pass_s + added_host_s
        step_s = plain_s + times.draft_s + own_s + added_s
        for request, tree, verdict in zip(requests, record.trees, record.verdicts, strict=True):
            if tree.num_drafted:
                self._judge(self._book(request), tree, verdict)
        self._count_step(requests, record, charges(drafted, plain_s, step_s), plain_s, step_s, times.draft_s)

    def _count_step(
        self,
        requests: Sequence[Request],
        record: StepRecord,
        charged: Sequence[float],
        plain_s: float,
        step_s: float,
        draft_s: float,
    ) -> None:
        """Enter a step in the books: what each request is charged, what a plain step would have taken, what it took."""
        in_full = [plan.num_nodes > 0 and not plan.first_drafters for plan in record.plans]  # all drafters were asked
        was_dear = draft_s > _CHEAP * plain_s and any(in_full)
        begin = [
            self._begin_len(request)
            for request, plan in zip(requests, record.plans, strict=True)
            if was_dear and plan.num_nodes and not self._book(request).asking.has_begun
        ]
        blind = [self._needs_to_see and self._book(request).was_off for request in requests]
        self._num_cheap += not was_dear and any(
            full and not unseen for full, unseen in zip(in_full, blind, strict=True)
        )
        if begin:
            self._begin_s = draft_s / sum(begin)
        elif any(plan.num_nodes for plan in record.plans):
            self._draft_s += (SMOOTH if was_dear else _FADE) * (draft_s - self._draft_s)
        self._tokens = _REMEMBER * self._tokens + sum(record.num_emitted)
        self._plain_tokens = _REMEMBER * self._plain_tokens + len(requests) * step_s / plain_s
        for request, plan, is_full, was_blind, tree, emitted, taken_s in zip(
            requests, record.plans, in_full, blind, record.trees, record.num_emitted, charged, strict=True
        ):
            book, num_drafted = self._book(request), tree.num_drafted
            if not num_drafted:
                book.trust.add(0.0, 0.0)  # forgets
            book.ledger.add(emitted, plain_s, taken_s)
            self._all.add(emitted, plain_s, taken_s)
            # Another's first question says nothing of what this request's own take.
            is_own = was_dear and is_full and (not begin or not book.asking.has_begun)
            book.count_step(num_drafted, plan.num_nodes > 0, is_own, emitted * plain_s - taken_s, was_blind)

    def _pass_s(self, sizes: Sequence[int], contexts: Sequence[int], taken_s: float) -> float:
        """What a pass with drafted nodes took, less the machine's moods, which are nobody's loss.

        One pass is believed only near what such passes have taken lately, in times of what they should; where several agree, so be it.
        """
        usual_s = self.costs.seconds(sizes, contexts)
        ratio = min(max(taken_s / usual_s, self._lately / 2), 2 * self._lately)  # of a stall, no more is learned
        believed = min(max(ratio, self._lately / _BELIEVED), self._lately * _BELIEVED)
        self._lately += _FOLLOW * (ratio - self._lately)
        return usual_s * believed

    def _judge(self, book: Book, tree: DraftTree, verdict: Verdict) -> None:
        """What became of the guesses corrects their chances."""
        edges = judged_edges(tree, verdict.path)
        book.trust.add(sum(self.calibration(stated) for stated, _ in edges), sum(accepted for _, accepted in edges))
        self.calibration.add(edges)

    def _book(self, request: Request) -> Book:
        return self._books.setdefault(request.request_id, Book())


def _smoothed(value: float, new: float) -> float:
    """A stall counts as twice the usual."""
    return value + SMOOTH * (min(new, 2 * value) - value) if value else new


def _nothing(plan: Plan) -> str:
    return f"{_NOTHING}; {plan.reason}" if plan.first_drafters else _NOTHING


def _off(plan: Plan, reason: str) -> Plan:
    return Plan(plan.num_known, 0, 0, plan.drafter, reason)


def _because(plan: Plan, reason: str) -> Plan:
    return Plan(plan.num_known, plan.num_nodes, plan.depth, plan.drafter, reason, plan.first_drafters)


def make(target: Target, num_nodes: int, drafter: str) -> AdaptiveController:
    """For the table of policies. Pass costs are measured the first time that a model runs on this machine."""
    return AdaptiveController(costs_of(target), num_nodes, drafter)
