"""Token Recycling: reuses the target's earlier top-k predictions for the same token [luo24].

A table keeps, for every token, the target's own k likeliest next tokens at the last place where that token was read:
in the prompt, in the answer, and in guesses that were rejected, which plain decoding would never have read. The draft
is the table followed from the root: candidates of the root, candidates of the candidates, in a fixed shape that gives
likelier ranks more room. No training, no model; the table of a large vocabulary takes a few megabytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from jaxtyping import Int

from foreword.draft.base import BaseDrafter, DraftNeed, Plan, RequestView, known_ids
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.runtime.base import PassOutput
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import PackedBatch
from foreword.tree.shapes import TreeShape, best_first
from foreword.verify.verdict import Verdict

# Share of positions at which the table's rank r names the next token, measured on SmolLM2-135M-Instruct.
RANK_PROBS = (0.40, 0.085, 0.042, 0.029, 0.019, 0.017, 0.012, 0.010, 0.008, 0.008)
_UNKNOWN = -1


@dataclass(frozen=True, kw_only=True)
class RecyclingOptions(DrafterOptions):
    """Size and life of the table."""

    # The table holds a column per candidate for every token of the vocabulary.
    recycling_top_k: int = option(8, "candidates kept for each token", lowest=1, highest=64)
    recycling_per_request: bool = option(False, "forget the table at the end of each request")


@final
class RecyclingDrafter(BaseDrafter):
    """A static tree filled from the adjacency table; deterministic.

    The table lives as long as the drafter, as in the paper: later requests start with what earlier ones taught it, so
    the number of steps (never the words) depends on history. With `per_request` each request has its own, empty at
    its start.
    """

    name = "recycling"

    def __init__(self, vocab_size: int, top_k: int = 8, per_request: bool = False) -> None:
        self.vocab_size, self.per_request = vocab_size, per_request
        self.need = DraftNeed(top_k=min(top_k, vocab_size), can_miss=True)
        self._shared = None if per_request else self._empty_table()
        self._own: dict[int, Int[np.ndarray, "vocab k"]] = {}

    def start(self, request: RequestView) -> None:
        """A table per request, where `recycling_per_request` is set."""
        if self.per_request:
            self._own[request.request_id] = self._empty_table()

    def stop(self, request: RequestView) -> None:
        """Forget the request's own table."""
        self._own.pop(request.request_id, None)

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One tree per request; branches without an entry in the table are left out."""
        return [self._tree(r, plan) for r, plan in zip(requests, plans, strict=True)]

    def observe(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        batch: PackedBatch,
        output: PassOutput,
    ) -> None:
        """Every node of the pass writes its token's row: prompt, accepted and rejected ones alike."""
        assert output.top_ids is not None, "the pass returned no top-k tokens"
        top_ids = output.top_ids.cpu().numpy()
        for index, request in enumerate(requests):
            nodes = slice(batch.starts[index], batch.starts[index + 1])
            self._table(request)[batch.token_ids[nodes]] = top_ids[nodes]  # a token read twice: the last one counts

    def _tree(self, request: RequestView, plan: Plan) -> DraftTree:
        known = known_ids(request, plan)
        if plan.num_nodes == 0 or plan.depth == 0:
            return DraftTree.chain(known)
        shape = shape_for(plan.num_nodes, plan.depth, self.need.top_k)
        token_ids = fill(shape, self._table(request), known[-1])
        tree = DraftTree(
            [*known, *token_ids.tolist()],
            [*range(-1, len(known) - 1), *(len(known) + parent for parent in shape.parents)],
            len(known),
            [*[1.0] * len(known), *shape.probs],
        )
        if token_ids.min() > _UNKNOWN:
            return tree
        return tree.subset([node for node, token in enumerate(tree.token_ids) if token > _UNKNOWN])

    def _table(self, request: RequestView) -> Int[np.ndarray, "vocab k"]:
        return self._own[request.request_id] if self._shared is None else self._shared

    def _empty_table(self) -> Int[np.ndarray, "vocab k"]:
        return np.full((self.vocab_size, self.need.top_k), _UNKNOWN, dtype=np.int32)


@lru_cache(maxsize=64)
def shape_for(num_nodes: int, depth: int, top_k: int) -> TreeShape:
    """The best shape of this size, by the measured shares of the ranks."""
    return best_first([RANK_PROBS[:top_k]], num_nodes, depth)


def fill(shape: TreeShape, table: Int[np.ndarray, "vocab k"], root_token: int) -> Int[np.ndarray, " nodes"]:
    """The tokens of a shape, level by level; -1 where the table has none, and below."""
    token_ids = np.empty(shape.num_nodes + 1, dtype=np.int32)
    token_ids[-1] = root_token  # parent -1 is the root
    parents, ranks = shape.arrays
    for level in shape.levels:
        nodes = slice(level.start, level.stop)
        before = token_ids[parents[nodes]]
        token_ids[nodes] = np.where(before > _UNKNOWN, table[before, ranks[nodes]], _UNKNOWN)
    return token_ids[:-1]


def make(settings: DrafterSettings, target: Target) -> RecyclingDrafter:
    """Needs the size of the target's vocabulary."""
    options: RecyclingOptions = settings.options
    return RecyclingDrafter(target.spec.vocab_size, options.recycling_top_k, options.recycling_per_request)


def remembers(options: RecyclingOptions) -> bool:
    """Whether a request begins with what those before it have left in the table."""
    return not options.recycling_per_request


RECYCLING = DrafterType(
    name="recycling",
    summary="token recycling: reuses the model's earlier top-k predictions for the same token",
    fits="any text; learns as it goes",
    make=make,
    options=RecyclingOptions,
    remembers=remembers,
    merges_with=("suffix",),
)
