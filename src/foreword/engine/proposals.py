"""Are a drafter's proposals trees that a pass can read? A fault of a drafter may end a request, never change a token."""

from collections.abc import Sequence

from foreword.draft.base import Plan
from foreword.engine.request import Request
from foreword.errors import ForewordError
from foreword.tree.draft_tree import DraftTree


def check_proposals(
    drafter: str, requests: Sequence[Request], plans: Sequence[Plan], trees: Sequence[DraftTree]
) -> None:
    """Raise `ForewordError`, which names the drafter, unless each tree begins with its request's pending tokens."""
    if not isinstance(trees, Sequence) or len(trees) != len(requests):
        given = f"{len(trees)} trees" if isinstance(trees, Sequence) else type(trees).__name__
        raise _fault(drafter, f"{given} for {len(requests)} requests", "one DraftTree per request, in their order")
    for request, plan, tree in zip(requests, plans, trees, strict=True):
        if not isinstance(tree, DraftTree):
            raise _fault(drafter, f"{type(tree).__name__} as a tree", "a DraftTree")
        pending = request.token_ids[request.kv_len : request.kv_len + plan.num_known]
        begins = list(tree.token_ids[: plan.num_known])
        if tree.num_known != plan.num_known or begins != pending:
            raise _fault(
                drafter,
                f"a tree that begins with {tree.num_known} known tokens {begins[:5]}",
                f"the {plan.num_known} pending tokens {pending[:5]} of the request first (`known_ids(request, plan)`)",
            )


def _fault(drafter: str, given: str, allowed: str) -> ForewordError:
    return ForewordError(f"drafter {drafter!r} proposed {given}; allowed: {allowed}")
