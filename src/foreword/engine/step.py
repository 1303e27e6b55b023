"""One speculative step: the page to read first.

Draft a tree for every request, let the target read all nodes of all trees in one pass, keep what it agrees with and one
token more. Prefill, plain decoding and speculation are the same step: a chunk of the prompt is a chain of committed tokens,
plain decoding is a tree of the root alone. Which drafter, which runtime, greedy or sampled: nothing here knows.

Errors in per-request work end that request only. Where that raises, the request ends with the error kept on it, only its
committed tokens stay, and the others notice nothing. Any other error ends them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foreword.draft.base import Drafter, DraftNeed, Plan, RequestView
from foreword.engine.logprobs import Asked, record_logprobs, scored_nodes
from foreword.engine.proposals import check_proposals
from foreword.engine.request import Request
from foreword.engine.step_clock import StepClock, StepTimes
from foreword.runtime.base import Need, PassOutput
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import PackedBatch, pack
from foreword.verify.base import Answers, Verifier, known_only
from foreword.verify.verdict import Verdict


class Controller(Protocol):
    """Decides how much to speculate."""

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """One plan per request."""
        ...

    def fit(
        self, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
    ) -> tuple[Sequence[Plan], Sequence[DraftTree]]:
        """The proposals without the nodes that cost more than they gain; and the plans with the reason."""
        ...

    def observe(self, requests: Sequence[Request], record: "StepRecord", times: StepTimes) -> None:
        """What the step did and how long it took; called after it."""
        ...

    def forget(self, request: Request) -> None:
        """A request has ended or was aborted."""
        ...


@dataclass(frozen=True)
class StepParts:
    """The parts of a step."""

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


def speculative_step(requests: Sequence[Request], parts: StepParts, clock: StepClock) -> StepRecord:
    """Draft, read everything in one pass, keep the agreed part. `clock` is told when each phase ends."""
    controller, drafter, target, verifier = parts.controller, parts.drafter, parts.target, parts.verifier
    clock.start()

    # 1. Plan: how many nodes each request may draft, and why.
    plans = controller.plan(requests)
    clock.stamp("plan")

    # 2. Draft: one tree per request, its root the last committed token.
    proposed = drafter.propose(requests, plans)
    check_proposals(drafter.name, requests, plans, proposed)
    clock.stamp("draft")

    # 3. Fit: only the nodes that pay, and only what grammars allow.
    plans, trees = controller.fit(requests, plans, proposed)
    clock.stamp("fit")
    trees = [r.attempt(r.guide, tree, plan) or tree for r, tree, plan in zip(requests, trees, plans, strict=True)]

    # 4. Target: all nodes of all trees, packed flat, in one pass.
    batch = pack(trees, [r.kv_len for r in requests], [r.slot for r in requests])
    asks = _ask(requests, trees, batch, verifier)
    was_prefilling = any(r.is_prefilling for r in requests)
    drafter_sees = _drafter_sees(drafter.need, plans, was_prefilling)
    need = _union(asks, drafter.need if drafter_sees else DraftNeed(), trees, batch)
    clock.stamp("pack")
    output = target.forward(batch, need)
    clock.stamp("target")

    # 5. Verify: the longest path that the target agrees with, and one token more.
    verdicts = _verify(requests, trees, batch, asks, output, verifier)
    clock.stamp("verify")

    # 6. Commit: stop conditions cut what was emitted; the cache keeps the rows of the path alone.
    num_emitted = commit(requests, trees, verdicts, target, drafter.name)
    clock.stamp("commit")

    # 7. Observe: what the drafter needs for its next proposals.
    if drafter_sees:
        drafter.observe(requests, trees, verdicts, batch, output)
    clock.stamp("observe")
    return StepRecord(plans, trees, verdicts, batch.num_nodes, num_emitted, was_prefilling)


def _drafter_sees(need: DraftNeed, plans: Sequence[Plan], was_prefilling: bool) -> bool:
    """Whether the drafter looks at the pass. Where nothing is drafted and it can miss one, the pass is a plain one."""
    return was_prefilling or not need.can_miss or any(plan.num_nodes for plan in plans)


def commit(
    requests: Sequence[Request],
    trees: Sequence[DraftTree],
    verdicts: Sequence[Verdict],
    target: Target,
    drafter: str,
) -> list[int]:
    """Add the emitted tokens up to a stop condition and keep the cache rows of all of them but the last.

    `drafter` is the name of what proposed nodes that do not say it themselves.
    """
    num_emitted = []
    for request, tree, verdict in zip(requests, trees, verdicts, strict=True):
        draws_next = bool(request.new_ids) and tree.num_known == request.num_unread  # not the first token
        kept = request.attempt(request.extend, verdict.emitted) or 0
        num_rows = tree.num_known + max(kept - 1, 0)
        target.commit(request.slot, verdict.path[:num_rows])
        request.kv_len += num_rows
        accepted = [_source(tree, node, drafter) for node in verdict.path[tree.num_known :][:kept]]
        request.drafted_by += [*accepted, *[None] * (kept - len(accepted))]
        if draws_next:
            max_depth = max(tree.depths) - tree.num_known + 1
            request.stats.record_step(tree.num_drafted, max_depth, len(accepted))
            if tree.num_drafted:
                drafted = (_source(tree, node, drafter) for node in range(tree.num_known, tree.num_nodes))
                request.stats.record_sources(drafted, accepted)
        num_emitted.append(kept)
    return num_emitted


def _source(tree: DraftTree, node: int, drafter: str) -> str:
    return (tree.sources[node] if tree.sources else "") or drafter


def _ask(
    requests: Sequence[Request], trees: Sequence[DraftTree], batch: PackedBatch, verifier: Verifier
) -> list[Asked]:
    """What is needed of each request's nodes; nothing to verify where committed tokens are still pending after this pass."""
    asked = []
    for request, tree, start in zip(requests, trees, batch.starts, strict=False):
        is_last = tree.num_known == request.num_unread
        ask = request.attempt(verifier.ask, tree, start, request.kv_len, request.sampler) if is_last else None
        asked.append(Asked(ask, [start + node for node in scored_nodes(request, tree)]))
    return asked


def _union(asked: Sequence[Asked], need: DraftNeed, trees: Sequence[DraftTree], batch: PackedBatch) -> Need:
    """What the pass must return: what verifier, results and drafter need."""
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
    """One verdict per request, from its share of the answers."""
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


__all__ = ["Controller", "RequestView", "StepParts", "StepRecord", "StepTimes", "commit", "speculative_step"]
