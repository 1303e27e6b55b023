"""What the steps so far have taught: what passes take, what guesses are worth, what drafting has brought each request."""

from collections.abc import Sequence

from foreword.adapt.acceptance import Calibration, judged_edges
from foreword.adapt.book import SMOOTH, Book
from foreword.adapt.cost import PassCosts
from foreword.adapt.ledger import Ledger, charges
from foreword.adapt.rest import Rest
from foreword.adapt.stride import PastStep
from foreword.draft.traits import needs_to_see, reads_near
from foreword.engine.request import Request
from foreword.engine.step import StepRecord
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict

_REMEMBER = 0.97
_CHEAP = 0.08  # of a plain step: up to here the ledger alone says when to stop asking
_UNKNOWN = 0.005  # of a plain pass, for each token of the text: what reading it is thought to take before it is known
_NEAR = 64  # tokens of a text that a drafter reads which looks at what is near
_TRUSTED = 8  # questions that cost next to nothing before that is taken for the rule
_FADE = 0.01  # how fast a dear drafter's time is forgotten in steps that did without it
_HORIZON = 64  # plain steps that a request may borrow against
_BELIEVED, _FOLLOW = 1.25, 0.2  # how far a single pass may be off, and how fast that moves


class Experience:
    """Of one engine with one drafter.

    Args:
        costs: what passes cost on this machine.
        drafter: its name.
    """

    def __init__(self, costs: PassCosts, drafter: str) -> None:
        self.costs = costs
        self.calibration = Calibration()
        self.all = Ledger()  # of all requests together
        self.books: dict[int, Book] = {}
        self.host_s = 0.0  # of a plain step, beside drafter and target, smoothed
        self._drafted_host_s = 0.0  # of one with drafts
        self._draft_s = 0.0  # of a step that asks the drafter, smoothed
        self._begin_s = 0.0  # of a request's first question to a drafter that runs a model, for each token of its text
        self._num_cheap = 0  # full questions that took next to no time
        self._needs_to_see, self._reads_near = needs_to_see(drafter), reads_near(drafter)
        # Of the last steps, older ones counting less: tokens emitted, and those of plain steps in the same time.
        self._tokens = self._plain_tokens = 0.0
        self._lately = 1.0  # times what passes with drafted nodes should take, smoothed

    def book(self, request: Request) -> Book:
        """What is known of one request."""
        return self.books.setdefault(request.request_id, Book())

    @property
    def speedup(self) -> float:
        """Tokens of the last steps, over those that plain steps would have brought in their time."""
        return self._tokens / self._plain_tokens if self._plain_tokens else 1.0

    @property
    def asking_costs(self) -> bool:
        """Whether the drafter's own time counts; where it does not, only its nodes have to pay."""
        return self._draft_s > _CHEAP * self.costs.seconds([1], [0])

    def question_s(self, request: Request, book: Book) -> float:
        """What asking a drafter that runs a model may take; the first time it reads the whole text."""
        if book.asking.has_begun or (not self._begin_s and self._num_cheap >= _TRUSTED):
            return self._draft_s
        unknown_s = _UNKNOWN * self.costs.seconds([request.num_unread], [request.kv_len])
        return (self._begin_s or unknown_s) * self._begin_len(request)

    def credit_s(self, request: Request, book: Book) -> float:
        """What drafting may still cost a request."""
        to_come_s = min(request.remaining, _HORIZON) * self.costs.seconds([request.num_unread], [request.kv_len])
        if self.all.credit_s(to_come_s) < 0:
            return book.ledger.own_credit_s(to_come_s)
        return book.ledger.credit_s(to_come_s, self.all.spare_s)

    def learn(self, requests: Sequence[Request], past: PastStep) -> None:
        """Of a step in which somebody was thought about."""
        learn = self._learn_drafted if any(tree.num_drafted for tree in past.record.trees) else self._learn_plain
        learn(requests, past)

    def learn_rest(self, rest: Rest) -> None:
        """Of plain steps in a row, which have saved nothing."""
        num_steps = rest.num_steps
        if num_steps == 0:
            return
        self.host_s = _smoothed(self.host_s, rest.host_s / num_steps)
        contexts = [request.kv_len for request in rest.requests]
        pass_s = self.costs.refine([1] * len(contexts), contexts, rest.target_s / num_steps, num_steps)
        taken_s = num_steps * (pass_s + self.host_s) + rest.draft_s
        self._tokens = _REMEMBER**num_steps * self._tokens + num_steps * len(contexts)
        self._plain_tokens = _REMEMBER**num_steps * self._plain_tokens + num_steps * len(contexts)
        for request in rest.requests:
            book = self.book(request)
            book.trust.add(0.0, 0.0, num_steps)
            book.num_plain += num_steps
            book.wait, book.was_off = max(book.wait - num_steps, 0), True
            book.asking.num_without += num_steps
            for ledger in (book.ledger, self.all):
                ledger.add(num_steps, pass_s + self.host_s, taken_s)

    def _learn_plain(self, requests: Sequence[Request], past: PastStep) -> None:
        """Of a step without drafted nodes: all it can have lost is the drafter's time and the controller's own."""
        record, times = past.record, past.times
        self.host_s = _smoothed(self.host_s, past.host_s)
        pass_s = self.costs.refine([tree.num_known for tree in record.trees], past.contexts, times.target_s)
        plain_s = pass_s + self.host_s
        was_asked = any(plan.num_nodes for plan in record.plans)
        step_s = plain_s + times.draft_s + (past.own_s if was_asked else 0.0)
        self._count_step(requests, record, [step_s] * len(requests), plain_s, step_s, times.draft_s)

    def _learn_drafted(self, requests: Sequence[Request], past: PastStep) -> None:
        record, times = past.record, past.times
        sizes = [tree.num_nodes for tree in record.trees]
        drafted = [tree.num_drafted for tree in record.trees]
        self._drafted_host_s = _smoothed(self._drafted_host_s, past.host_s)
        self.costs.refine(sizes, past.contexts, times.target_s)
        plain_pass_s = self.costs.seconds([tree.num_known for tree in record.trees], past.contexts)
        plain_s = plain_pass_s + self.host_s
        added_host_s = max(self._drafted_host_s - self.host_s, 0.0)
        added_s = self._pass_s(sizes, past.contexts, times.target_s) - plain_pass_s + added_host_s
        step_s = plain_s + times.draft_s + past.own_s + added_s
        for request, tree, verdict in zip(requests, record.trees, record.verdicts, strict=True):
            if tree.num_drafted:
                self._judge(self.book(request), tree, verdict)
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
            if was_dear and plan.num_nodes and not self.book(request).asking.has_begun
        ]
        blind = [self._needs_to_see and self.book(request).was_off for request in requests]
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
            book, num_drafted = self.book(request), tree.num_drafted
            if not num_drafted:
                book.trust.add(0.0, 0.0)  # forgets
            book.ledger.add(emitted, plain_s, taken_s)
            self.all.add(emitted, plain_s, taken_s)
            # Another's first question says nothing of what this request's own take.
            is_own = was_dear and is_full and (not begin or not book.asking.has_begun)
            book.count_step(num_drafted, plan.num_nodes > 0, is_own, emitted * plain_s - taken_s, was_blind)

    def _begin_len(self, request: Request) -> int:
        """Tokens that are read for a request's first guess."""
        return min(request.kv_len, _NEAR) if self._reads_near else request.kv_len

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


def _smoothed(value: float, new: float) -> float:
    """A stall counts as twice the usual."""
    return value + SMOOTH * (min(new, 2 * value) - value) if value else new
