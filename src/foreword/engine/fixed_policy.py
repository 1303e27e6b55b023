"""The simplest policy: always the same number of nodes."""

from collections.abc import Sequence

from foreword.draft.base import Plan
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

PREFILL_CHUNK = 512  # tokens of prompts in one pass, all prompts together


class FixedController:
    """Gives every decoding request `num_nodes` drafted nodes or as many as it asks for, less where its end is near."""

    def __init__(self, num_nodes: int, drafter: str, prefill_chunk: int = PREFILL_CHUNK) -> None:
        self.num_nodes, self.drafter, self.prefill_chunk = num_nodes, drafter, prefill_chunk

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """A share of a chunk for prompts that are being read, the fixed size or the request's own for the rest."""
        shares = iter(prefill_shares([r.num_unread for r in requests if r.is_prefilling], self.prefill_chunk))
        return [self._prefill(next(shares)) if r.is_prefilling else self._decode(r) for r in requests]

    def fit(
        self, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
    ) -> tuple[Sequence[Plan], Sequence[DraftTree]]:
        """Everything that was proposed."""
        return plans, trees

    def observe(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        """Nothing to learn."""

    def forget(self, request: Request) -> None:
        """Nothing is kept."""

    def _prefill(self, num_tokens: int) -> Plan:
        return Plan(num_tokens, 0, 0, self.drafter, "reading the prompt")

    def _decode(self, request: Request) -> Plan:
        wanted, reason = self._wanted(request)
        depth = min(wanted, request.remaining - 1)
        if depth < wanted:
            reason = f"only {request.remaining} tokens may still come"
        return Plan(request.num_unread, wanted if depth > 0 else 0, depth, self.drafter, reason)

    def _wanted(self, request: Request) -> tuple[int, str]:
        """Nodes that are worth drafting wherever the request's end may be, and why so many."""
        asked = request.drafting.num_speculative_tokens
        if not request.drafting.enabled:
            return 0, "switched off for this request"
        if asked is None or self.drafter == "none":  # without a drafter there is nothing to draft
            return self.num_nodes, "fixed size"
        return asked, "the size that this request sets"


def prefill_shares(unread: Sequence[int], budget: int) -> list[int]:
    """How many tokens of each prompt one pass reads: equal parts of the budget, and what short ones leave to the others.

    So a short prompt is read in its first pass however long the others are. Each gets a token at least, so that
    more prompts than the budget has tokens go beyond it.
    """
    shares, left = [0] * len(unread), budget
    for num_done, index in enumerate(sorted(range(len(unread)), key=unread.__getitem__)):
        shares[index] = min(unread[index], max(left // (len(unread) - num_done), 1))
        left = max(left - shares[index], 0)
    return shares


def make(target: Target, num_nodes: int, drafter: str) -> FixedController:
    """For the table of policies."""
    return FixedController(num_nodes, drafter)
