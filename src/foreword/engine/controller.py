"""The simplest policy: always the same number of nodes."""

from collections.abc import Sequence

from foreword.draft.base import Plan
from foreword.engine.request import Request

PREFILL_CHUNK = 512  # most tokens of a prompt in one pass


class FixedController:
    """Gives every decoding request `num_nodes` drafted nodes, less where its end is near."""

    def __init__(self, num_nodes: int, drafter: str, prefill_chunk: int = PREFILL_CHUNK) -> None:
        self.num_nodes, self.drafter, self.prefill_chunk = num_nodes, drafter, prefill_chunk

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """A chunk for prompts that are being read, the fixed size for the rest."""
        return [self._prefill(r) if r.is_prefilling else self._decode(r) for r in requests]

    def _prefill(self, request: Request) -> Plan:
        return Plan(min(request.num_unread, self.prefill_chunk), 0, 0, self.drafter, "reading the prompt")

    def _decode(self, request: Request) -> Plan:
        depth = min(self.num_nodes, request.remaining - 1)
        reason = "fixed size" if depth == self.num_nodes else f"only {request.remaining} tokens may still come"
        return Plan(request.num_unread, self.num_nodes if depth > 0 else 0, depth, self.drafter, reason)
