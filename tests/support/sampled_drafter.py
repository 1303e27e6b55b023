"""A drafter that draws its guesses at random from a toy model of its own."""

from collections.abc import Sequence

import torch

from foreword.draft.base import BaseDrafter, Drawn, Plan, RequestView, known_ids
from foreword.sampling.draft_sampling import DraftMode, DraftPlace, DraftVocab, draw_drafts
from foreword.tree.draft_tree import DraftTree
from tests.support.toy_decoder import ToyDecoder


class BlurredModel:
    """A toy model's logits mixed with another's: a drafter that often agrees. `share` is the target's weight."""

    def __init__(self, target: ToyDecoder, share: float, seed: int = 77) -> None:
        self.target, self.share = target, share
        self.other = ToyDecoder(target.spec.vocab_size, seed, target.sharpness)

    def logits_after(self, tokens, position: int) -> torch.Tensor:
        mine, other = self.target.logits_after(tokens, position), self.other.logits_after(tokens, position)
        return self.share * mine + (1 - self.share) * other


class SampledDrafter(BaseDrafter):
    """Trees with `widths[d]` children after every node at depth d, drawn without replacement; `(1, 1, 1)` is a chain."""

    name = "sampled"

    def __init__(self, model, widths: Sequence[int], mode: DraftMode, vocab_size: int) -> None:
        self.model, self.widths, self.mode, self.vocab = model, widths, mode, DraftVocab(vocab_size)

    def propose(self, requests: Sequence[RequestView], plans: Sequence[Plan]) -> list[DraftTree]:
        return [self._tree(r, plan) for r, plan in zip(requests, plans, strict=True)]

    def _tree(self, request: RequestView, plan: Plan) -> DraftTree:
        known = list(known_ids(request, plan))
        token_ids, parents, rows = list(known), list(range(-1, len(known) - 1)), [None] * len(known)
        texts = {len(known) - 1: list(request.token_ids)}
        root_position, first = len(request.token_ids) - 1, len(known) - 1
        level = [first]
        for width in self.widths[: plan.depth if plan.num_nodes else 0]:
            level = [
                child
                for node in level
                for child in self._children(request, texts, node, width, root_position, token_ids, parents, rows)
            ]
        tree = DraftTree(token_ids, parents, len(known), draft_probs=rows)
        tree.check(self.vocab.target_size)
        return tree

    def _children(self, request, texts, node, width, root_position, token_ids, parents, rows) -> list[int]:
        text = texts[node]
        place = DraftPlace(position=len(text), root_position=root_position, parent=node)
        logits = self.model.logits_after(text, len(text) - 1)
        drawn = draw_drafts(logits, request.sampler, width, place, self.mode, self.vocab)
        children = []
        for token in drawn.token_ids:
            children.append(len(token_ids))
            texts[len(token_ids)] = [*text, token]
            token_ids.append(token)
            parents.append(node)
            rows.append(drawn.row)
        return children


class Reranked(SampledDrafter):
    """Drops a drawn node because of its token."""

    name = "reranked"
    drawn = Drawn.LOOSE_TREES

    def propose(self, requests, plans):
        return [self._thinned(tree) for tree in super().propose(requests, plans)]

    def _thinned(self, tree):
        last = tree.num_nodes - 1
        return tree.subset(range(last)) if tree.num_drafted and tree.token_ids[last] % 2 else tree


class Branching(SampledDrafter):
    """Every node that was drawn is there, branches too."""

    name = "branching"
    drawn = Drawn.TREES
