"""Medusa: heads predict several tokens ahead from the target's last hidden state; a calibrated tree [medusa24].

    text      t0 t1 t2 t3 = root                 the target has read t0 .. t2
    hidden    of t2, the last token it read      the root is the token that the target itself drew there
    head 0    guesses the token after the root   depth 1
    head 1    the one after that                 depth 2

A head knows nothing of what the others guess, so every node of a depth has the same candidates. Which of them are worth a
node at which place was measured when the heads were trained and stands in their card.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from foreword.checkpoint.opened import Checkpoint
from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.config import MAX_SPECULATIVE_TOKENS
from foreword.draft.base import BaseDrafter, DraftNeed, Drawn, Plan, RequestView, known_ids
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.draft.drafter_type import DrafterSettings, DrafterType
from foreword.draft.heads.medusa_files import open_heads
from foreword.draft.heads.medusa_guess import NO_TOKEN, CandidateMaker, Candidates
from foreword.draft.heads.medusa_network import MedusaNetwork, load_heads
from foreword.draft.heads.medusa_tree import Template, cut
from foreword.draft.model.draft_vocab import drafted_ids
from foreword.errors import ConfigError
from foreword.runtime.base import PassOutput
from foreword.sampling.draft_sampling import DraftMode
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import PackedBatch
from foreword.verify.verdict import Verdict

DEFAULT_NODES = 8  # where the card names no number


@dataclass(frozen=True, kw_only=True)
class MedusaOptions(DrafterOptions):
    """What the tree may hold."""

    draft_tree_width: int | None = option(
        None, "most candidates per node; 1 drafts a chain, None as the calibrated tree", lowest=1, highest=64
    )
    draft_tree_depth: int | None = option(
        None, "most tokens in a row; None for all heads", lowest=1, highest=MAX_SPECULATIVE_TOKENS
    )
    draft_vocab: str | None = option(None, "draft only the tokens of this list of ids (.pt or .json) [frspec25]")


@final
class MedusaDrafter(BaseDrafter):
    """Drafts with Medusa heads.

    Args:
        network: the heads, loaded beside their target.
        options: most candidates per node, and depth; what they leave open the card says.
        draft_mode: whose noise draws guesses.
    """

    name = "medusa"
    need = DraftNeed(hidden=True, can_miss=True)

    def __init__(
        self, network: MedusaNetwork, options: MedusaOptions, draft_mode: DraftMode = DraftMode.SHARED
    ) -> None:
        self.network, self._width = network, options.draft_tree_width
        self._depth = min(network.heads.num_heads, options.draft_tree_depth or network.heads.num_heads)
        self.drawn = Drawn.CHAINS if self._width == 1 else Drawn.TREES
        said = network.settings.get("num_speculative_tokens")
        self.default_num_nodes = said if isinstance(said, int) and said > 0 else DEFAULT_NODES
        self._maker = CandidateMaker(network.vocab, draft_mode)
        self._shapes: dict[tuple[int, int], Template] = {}  # by nodes and depth
        self._hidden: dict[int, tuple[int, Tensor]] = {}  # by request: tokens read, state of the last of them

    def stop(self, request: RequestView) -> None:
        """Forget its state."""
        self._hidden.pop(request.request_id, None)

    def observe(
        self,
        requests: Sequence[RequestView],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        batch: PackedBatch,
        output: PassOutput,
    ) -> None:
        """Keep the state of the last token that was committed; the pass's own memory is not kept."""
        assert output.hidden is not None, "the hidden states were asked for"
        for request, verdict, start in zip(requests, verdicts, batch.starts, strict=False):
            self._hidden[request.request_id] = request.kv_len, output.hidden[start + verdict.path[-1]].clone()

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        """One pass of the heads for all requests together."""
        trees = [DraftTree.chain(known_ids(r, plan)) for r, plan in zip(requests, plans, strict=True)]
        shapes = [self._shape(r, plan) for r, plan in zip(requests, plans, strict=True)]
        drafting = [index for index, shape in enumerate(shapes) if shape is not None]
        if not drafting:
            return trees
        found = [shape for shape in shapes if shape is not None]
        states = [self._hidden[requests[index].request_id][1] for index in drafting]
        hidden = states[0][None] if len(states) == 1 else torch.stack(states)
        logits = self.network.heads(hidden, max(shape.num_levels for shape in found))
        width = max(shape.width for shape in found)
        made = self._maker.candidates([requests[index] for index in drafting], logits, width)
        for index, shape, candidates in zip(drafting, found, made, strict=True):
            trees[index] = _filled(trees[index].token_ids, shape, candidates)
        return trees

    def _shape(self, request: RequestView, plan: Plan) -> Template | None:
        """The tree to fill; None where nothing may be drafted, or where the state is not that before the root."""
        known = self._hidden.get(request.request_id)
        is_next = known is not None and known[0] == request.kv_len == len(request.token_ids) - 1
        if not is_next or plan.num_nodes == 0 or plan.depth == 0:
            return None
        size = plan.num_nodes, min(plan.depth, self._depth)
        if size not in self._shapes:
            self._shapes[size] = cut(self.network.paths, *size, self._width)
        shape = self._shapes[size]
        return shape if shape.num_levels else None


def _filled(known: Sequence[int], template: Template, candidates: Candidates) -> DraftTree:
    """The shape with its tokens; nodes that there is no candidate for are left out, with all below them."""
    ranks, levels, width = template.ranks, template.levels, candidates.token_ids.shape[1]
    if template.width <= width:
        chosen = candidates.token_ids[levels, ranks]
    else:
        chosen = np.where(ranks < width, candidates.token_ids[levels, np.minimum(ranks, width - 1)], NO_TOKEN)
    num_known = len(known)
    rows = None
    if any(row is not None for row in candidates.rows):
        rows = [*[None] * num_known, *(candidates.rows[level] for level in levels.tolist())]
    tree = DraftTree(
        [*known, *chosen.tolist()],
        [*range(-1, num_known - 1), *(template.places + (num_known - 1)).tolist()],
        num_known,
        [*[1.0] * num_known, *template.shape.probs],
        rows,
    )
    if chosen.min() > NO_TOKEN:
        return tree
    keep = list(range(num_known))
    for node in range(num_known, tree.num_nodes):
        if tree.token_ids[node] > NO_TOKEN and tree.parents[node] in keep:
            keep.append(node)
    # How many candidates there are is up to the distribution, not to what was drawn from it: the shape stays fixed.
    return replace(tree.subset(keep), shape_is_fixed=True)


def make(settings: DrafterSettings, target: Target) -> MedusaDrafter:
    """Loads the heads beside the target, on its runtime."""
    beside = target.model
    if beside is None:
        raise ConfigError("drafter medusa is loaded beside a target that was loaded by name; this one was not")
    theirs = beside.checkpoint if isinstance(beside.checkpoint, Checkpoint) else None
    path = settings.path
    if path is None and theirs is not None:
        path = trained_drafter("medusa", theirs.fingerprint)
    if path is None:
        raise ConfigError(
            "drafter medusa needs heads made for this model, and none are installed; give some as medusa=PATH (a "
            "folder, a file medusa_lm_head.pt or a hub id), or train them with 'foreword train medusa'"
        )
    ids = drafted_ids(settings.options.draft_vocab, beside)
    heads = load_heads(open_heads(path), target.spec, theirs, beside.runtime, ids)
    return MedusaDrafter(heads, settings.options, settings.draft_mode)


MEDUSA = DrafterType(
    name="medusa",
    summary="Medusa: heads predict several tokens ahead from the model's last hidden state; a calibrated tree",
    needs="trained heads",
    fits="one model served for long",
    make=make,
    options=MedusaOptions,
    takes="PATH",
    runs_model=True,
    reads_states=True,
)
