"""One speculative step: the page to read first.

Draft a tree for every request, let the target read all nodes of all trees in one pass, keep what it agrees with and one
token more. Prefill, plain decoding and speculation are the same step: a chunk of the prompt is a chain of known nodes,
plain decoding is a tree of the root alone. Which drafter, which runtime, greedy or sampled: nothing here knows.

What is about one request alone is `attempt`ed. Where that raises, the request ends with the error kept on it, only its
known tokens stay, and the others notice nothing. Any other error ends them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foreword.draft.base import Drafter, DraftNeed, Plan, RequestView
from foreword.engine.logprobs import Asked, record_logprobs, scored_nodes
from foreword.engine.request import Request
from foreword.runtime.base import Need, PassOutput
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import PackedBatch, pack
from foreword.verify.base import Answers, Verifier, known_only
from foreword.verify.verdict import Verdict


class Controller(Protocol):
    """Decides how much to speculate."""

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """One plan a request."""
        ...

    def fit(
        self, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
    ) -> tuple[Sequence[Plan], Sequence[DraftTree]]:
        """What was proposed, without the nodes that do not pay; and the plans with the reason."""
        ...

    def observe(self, requests: Sequence[Request], record: "StepRecord", times: "StepTimes") -> None:
        """What the step did and how long it took; called after it."""
        ...

    def forget(self, request: Request) -> None:
        """A request has ended, or its reader went away."""
        ...


@dataclass(frozen=True)
class StepParts:
    """Who does what in a step."""

    controller: Controller
    drafter: Drafter
    target: Target
    verifier: Verifier


@dataclass(frozen=True)
class StepRecord:
    """What a step did."""

    plans: Sequence[Plan]
    trees: Sequence[DraftTree]
    verdicts: Sequence[Verdict]
    num_nodes: int
    num_emitted: Sequence[int]  # per request, after stop conditions
    was_prefilling: bool  # whether any request was reading its prompt


@dataclass(frozen=True)
class StepTimes:
    """How long a step took."""

    total_s: float
    draft_s: float  # in the drafter
    target_s: float  # in the target's pass

    @property
    def host_s(self) -> float:
        """In neither: packing, verification, bookkeeping, planning."""
        return max(self.total_s - self.draft_s - self.target_s, 0.0)


def speculative_step(requests: Sequence[Request], parts: StepParts) -> StepRecord:
    """Draft, read everything in one pass, keep the agreed part."""
    plans = parts.controller.plan(requests)  # how many nodes, which drafter, why
    proposed = parts.drafter.propose(requests, plans)  # one DraftTree a request
    plans, trees = parts.controller.fit(requests, plans, proposed)  # less what does not pay
    trees = [  # as grammars want them
        r.attempt(r.guide, tree, plan) or tree for r, tree, plan in zip(requests, trees, plans, strict=True)
    ]
    batch = pack(trees, [r.kv_len for r in requests], [r.slot for r in requests])  # flat over all nodes
    asks = _ask(requests, trees, batch, parts.verifier)
    was_prefilling = any(r.is_prefilling for r in requests)
    is_off = not was_prefilling and not any(
        plan.num_nodes for plan in plans
    )  # then the pass is as cheap as a plain one
    watches = not (is_off and parts.drafter.need.can_miss)
    output = parts.target.forward(batch, _union(asks, parts.drafter.need if watches else DraftNeed(), trees, batch))
    verdicts = _verify(requests, trees, batch, asks, output, parts.verifier)  # accepted path + one extra token
    num_emitted = commit(requests, trees, verdicts, parts.target)  # stop conditions cut; KV keeps the path alone
    if watches:
        parts.drafter.observe(requests, trees, verdicts, batch, output)  # what the next proposal needs
    return StepRecord(plans, trees, verdicts, batch.num_nodes, num_emitted, was_prefilling)


def commit(
    requests: Sequence[Request], trees: Sequence[DraftTree], verdicts: Sequence[Verdict], target: Target
) -> list[int]:
    """Add the emitted tokens up to a stop condition and keep the cache rows of all of them but the last."""
    num_emitted = []
    for request, tree, verdict in zip(requests, trees, verdicts, strict=True):
        draws_next = bool(request.new_ids) and tree.num_known == request.num_unread  # not the first token
        kept = request.attempt(request.extend, verdict.emitted) or 0
        num_rows = tree.num_known + max(kept - 1, 0)
        target.commit(request.slot, verdict.path[:num_rows])
        request.kv_len += num_rows
        if draws_next:
            max_depth = max(tree.depths) - tree.num_known + 1
            request.stats.record_step(tree.num_drafted, max_depth, min(kept, verdict.num_accepted))
        num_emitted.append(kept)
    return num_emitted


def _ask(
    requests: Sequence[Request], trees: Sequence[DraftTree], batch: PackedBatch, verifier: Verifier
) -> list[Asked]:
    """What is wanted of each request's nodes; nothing to verify where known tokens are still unread after this pass."""
    asked = []
    for request, tree, start in zip(requests, trees, batch.starts, strict=False):
        is_last = tree.num_known == request.num_unread
        ask = request.attempt(verifier.ask, tree, start, request.kv_len, request.sampler) if is_last else None
        asked.append(Asked(ask, [start + node for node in scored_nodes(request, tree)]))
    return asked


def _union(asked: Sequence[Asked], need: DraftNeed, trees: Sequence[DraftTree], batch: PackedBatch) -> Need:
    """What the pass must hand back: what verifier, results and drafter ask for."""
    return Need(
        draws=[draw for a in asked if a.ask for draw in a.ask.draws],
        logits=[node for a in asked for node in a.logits],
        top_k=need.top_k,
        top_nodes=need.top_nodes(trees, batch.starts),
        taps=need.taps,
        hidden=need.hidden,
    )


def _verify(
    requests: Sequence[Request],
    trees: Sequence[DraftTree],
    batch: PackedBatch,
    asked: Sequence[Asked],
    output: PassOutput,
    verifier: Verifier,
) -> list[Verdict]:
    """One verdict a request, from its share of the answers."""
    verdicts, draw, row = [], 0, 0
    for request, tree, start, wanted in zip(requests, trees, batch.starts, asked, strict=False):
        rows = output.logits[row : row + len(wanted.logits)] if output.logits is not None else None
        row += len(wanted.logits)
        verdict = None
        if wanted.ask is not None:
            choices = {d.node - start: output.choices[draw + i] for i, d in enumerate(wanted.ask.draws)}
            draw += len(wanted.ask.draws)
            logits = rows[: len(wanted.ask.logits)] if rows is not None else None
            answers = Answers(choices, logits, request.token_ids, request.prompt_len, request.stats.num_steps)
            verdict = request.attempt(verifier.decide, tree, answers, request.sampler)
        verdict = verdict or known_only(tree)
        request.attempt(record_logprobs, request, tree, verdict, wanted, start, rows)
        verdicts.append(verdict)
    return verdicts


__all__ = ["Controller", "RequestView", "StepParts", "StepRecord", "commit", "speculative_step"]
