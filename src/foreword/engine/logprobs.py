"""Log-probabilities that a result reports: of the model's raw logits, before any option changes them.

Each row is worked alone and in float32, so its bits are the same with and without speculation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.engine.request import Request
from foreword.engine.result import TokenLogprob
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Ask
from foreword.verify.verdict import Verdict


@dataclass(frozen=True)
class Asked:
    """What is wanted of one request's nodes: for the verdict, and for log-probabilities."""

    ask: Ask | None  # None where there is nothing to decide yet
    scored: Sequence[int] = ()  # by index in the packed batch

    @cached_property
    def logits(self) -> list[int]:
        """All nodes whose logits are wanted, the verifier's first."""
        asked = list(self.ask.logits) if self.ask is not None else []
        return [*asked, *(node for node in self.scored if node not in set(asked))]


def scored_nodes(request: Request, tree: DraftTree) -> range:
    """The nodes whose next tokens' log-probabilities the request wants, should they be kept."""
    params, is_last = request.params, tree.num_known == request.num_unread
    of_prompt = params.prompt_logprobs is not None and request.is_prefilling
    of_answer = params.logprobs is not None and is_last
    if not of_prompt and not of_answer:
        return range(0)
    return range(0 if of_prompt else tree.num_known - 1, tree.num_nodes if of_answer else tree.num_known)


def record_logprobs(
    request: Request, tree: DraftTree, verdict: Verdict, asked: Asked, first_node: int, rows: Tensor | None
) -> None:
    """Note what one pass tells of the prompt's tokens and of the emitted ones (before stop conditions)."""
    params = request.params
    if rows is None or not asked.scored:
        return
    row_of = {node - first_node: row for row, node in enumerate(asked.logits)}
    if params.prompt_logprobs is not None and request.is_prefilling:
        start = request.kv_len
        for node in range(min(tree.num_known, request.prompt_len - 1 - start)):
            token = request.token_ids[start + node + 1]
            request.prompt_logprobs.append(token_logprob(rows[row_of[node]], token, params.prompt_logprobs))
    if params.logprobs is not None:
        for node, token in zip(verdict.path[tree.num_known - 1 :], verdict.emitted, strict=False):
            request.logprobs.append(token_logprob(rows[row_of[node]], token, params.logprobs))


def token_logprob(logits: Float[Tensor, " vocab"], token_id: int, num_top: int) -> TokenLogprob:
    """A token's log-probability and the most probable tokens; of equals the lowest id comes first."""
    scores = torch.log_softmax(logits.float(), dim=-1)
    top: list[tuple[int, float]] = []
    if num_top:
        lowest = torch.topk(scores, num_top).values[-1]
        near = torch.nonzero(scores >= lowest).flatten()  # ascending ids; more than asked for where there are ties
        order = torch.sort(scores[near], descending=True, stable=True).indices[:num_top]
        top = list(zip(near[order].tolist(), scores[near[order]].tolist(), strict=True))
    return TokenLogprob(token_id, float(scores[token_id]), tuple(top))
