"""The simplest policy: always the same number of nodes."""

from collections.abc import Sequence

from foreword.draft.base import Plan
from foreword.engine.request import Request
from foreword.engine.step import StepRecord, StepTimes
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

PREFILL_CHUNK = 512  # most tokens of a prompt in one pass


class FixedController:
    """Gives every decoding request `num_nodes` drafted nodes or as many as it asks for, less where its end is near."""

    def __init__(self, num_nodes: int, drafter: str, prefill_chunk: int = PREFILL_CHUNK) -> None:
        self.num_nodes, self.drafter, self.prefill_chunk = num_nodes, drafter, prefill_chunk

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """A chunk for prompts that are being read, the fixed size or the request's own for the rest."""
        return [self._prefill(r) if r.is_prefilling else self._decode(r) for r in requests]

    def fit(
        self, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
    ) -> tuple[Sequence[Plan], Sequence[DraftTree]]:
        """Everything that was proposed."""
        return plans, trees

    def observe(self, requests: Sequence[Request], record: StepRecord, times: StepTimes) -> None:
        """Nothing to learn."""

    def forget(self, request: Request) -> None:
        """Nothing is kept."""

    def _prefill(self, request: Request) -> Plan:
        return Plan(min(request.num_unread, self.prefill_chunk), 0, 0, self.drafter, "reading the prompt")

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
        if asked is None or self.drafter == "none":  # without a drafter there is nobody to ask for more
            return self.num_nodes, "fixed size"
        return asked, "the size this request asks for"


def make(target: Target, num_nodes: int, drafter: str) -> FixedController:
    """For the table of policies."""
    return FixedController(num_nodes, drafter)
