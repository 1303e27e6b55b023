"""An n-gram language model of the target's own answers as a drafter: counted, not trained; a look-up takes some 20 microseconds.

It predicts the model's output after the last few tokens of any text; `suffix` copies from this text. They complement each
other: `suffix,ngram_lm`. Tables of the model's likeliest next tokens as drafts are in [stewart24], the mixing of long and
short contexts is [witten91]'s.
"""

import heapq
import logging
from collections.abc import Sequence
from typing import final

from foreword.checkpoint.drafter_folder import drafter_folder
from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.draft.base import BaseDrafter, Plan, RequestView, known_ids
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.lookup.ngram_table import FILE, NgramTable, load_table
from foreword.errors import CheckpointError, ConfigError
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree

logger = logging.getLogger(__name__)

METHOD = "ngram_lm"
_LEAST = 0.12  # least probability of being reached: nodes below it cost more than they gain, on every machine that was measured

_Open = tuple[float, int, int, int, list[int]]  # (-chance, parent, token, depth, tokens before it)


@final
class NgramLmDrafter(BaseDrafter):
    """A tree of the most probable continuations, best first; deterministic.

    Args:
        table: of the target's answers.
    """

    name = METHOD
    default_num_nodes = 4

    def __init__(self, table: NgramTable) -> None:
        self.table = table

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One tree per request; no draft where the table has no probable continuation."""
        return [self._tree(request, plan) for request, plan in zip(requests, plans, strict=True)]

    def _tree(self, request: RequestView, plan: Plan) -> DraftTree:
        """Grown by the most probable open node, which may be anywhere."""
        ids = list(known_ids(request, plan))
        num_known, root = len(ids), len(ids) - 1
        parents, chances = list(range(-1, root)), [1.0] * num_known
        open_nodes: list[_Open] = []
        last_ids, node, depth = list(request.token_ids[-self.table.order :]), root, 0
        while len(ids) - num_known < plan.num_nodes:
            if depth < plan.depth:
                for token, chance in self.table.after(last_ids):
                    if (reached := chances[node] * chance) >= _LEAST:
                        heapq.heappush(open_nodes, (-reached, node, token, depth + 1, last_ids))
            if not open_nodes:
                break
            negative, parent, token, depth, before = heapq.heappop(open_nodes)
            node, last_ids = len(ids), [*before[-self.table.order + 1 :], token]
            ids.append(token)
            parents.append(parent)
            chances.append(-negative)
        return DraftTree(ids, parents, num_known, chances)


def make(settings: DrafterSettings, target: Target) -> NgramLmDrafter:
    """The table that is named, or the one that comes for this model."""
    folder = drafter_folder(settings.path, (FILE,)) if settings.path else None
    table = table_of(target) if folder is None else load_table(folder, target.spec.vocab_size)
    if table is None:
        raise ConfigError(
            "drafter ngram_lm needs an n-gram table of this model's answers, and none is installed for it; one is counted in minutes: "
            "foreword train ngram_lm --own-prompts 1000 --out FOLDER, then --drafter ngram_lm=FOLDER"
        )
    return NgramLmDrafter(table)


def table_of(target: Target) -> NgramTable | None:
    """The table that is installed for this model or lies in the cache; None where there is none."""
    fingerprint = getattr(target.model.checkpoint, "fingerprint", None) if target.model else None
    folder = trained_drafter(METHOD, fingerprint) if fingerprint else None
    return None if folder is None else load_table(folder, target.spec.vocab_size)


def table_if_any(target: Target) -> NgramTable | None:
    """As `table_of`, for a drafter that goes without: a damaged one is told of and left out."""
    try:
        return table_of(target)
    except CheckpointError as error:  # it was not named, so its absence is no error
        logger.warning("drafting without a table: %s", error)
        return None


NGRAM_LM = DrafterType(
    name=METHOD,
    summary="proposes what the model most often generates after the last few tokens, from an n-gram table counted over its own outputs",
    needs="a table, counted in minutes",
    fits="one model, any text; beside suffix",
    make=make,
    takes="PATH",
    merges_with=("suffix",),
)
