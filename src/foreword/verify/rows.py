"""The two distributions that a rule compares, in float64 on the CPU, and how their logits are asked for."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.errors import ConfigError
from foreword.sampling.sampler import Sampler
from foreword.sampling.warp import not_numbers, to_probs
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Answers, Ask, Matching, path_tokens


def ask_rows(
    tree: DraftTree, first_node: int, kv_len: int, sampler: Sampler, nodes: Callable[[DraftTree], Iterable[int]]
) -> Ask:
    """Logits at `nodes(tree)`, which may refuse the tree; when greedy, what matching asks of any tree."""
    if sampler.warp.is_greedy:
        return Matching().ask(tree, first_node, kv_len, sampler)
    return Ask(logits=[first_node + node for node in nodes(tree)])


class TargetRows:
    """What the target would draw from after each node, worked out when asked for: shaped by its path, warped once."""

    def __init__(self, tree: DraftTree, answers: Answers, sampler: Sampler) -> None:
        assert answers.logits is not None, "verifiers that compare distributions need logits"
        self._tree, self._answers, self._sampler, self._logits = tree, answers, sampler, answers.logits

    def __call__(self, node: int) -> Float[Tensor, " vocab"]:
        """The distribution of the token after `node`."""
        logits = self._logits[node - self._tree.num_known + 1].cpu()
        shaped = self._sampler.shape(logits, path_tokens(self._tree, node, self._answers), self._answers.prompt_len)
        probs = to_probs(shaped, self._sampler.warp, torch.float64)
        if math.isnan(float(probs[0])):  # one such score makes all of them so
            raise not_numbers()
        return probs


def draft_row(tree: DraftTree, node: int, vocab_size: int) -> Float[Tensor, " vocab"] | None:
    """The distribution that `node` was drawn from, over the target's vocabulary; None if it was not drawn.

    A token that its row never says was not drawn from it either. A shorter row is filled up with zeros; `ConfigError`
    if a longer one has mass beyond the vocabulary.
    """
    row = None if tree.draft_probs is None else tree.draft_probs[node]
    if row is None or tree.token_ids[node] >= len(row) or float(row[tree.token_ids[node]]) == 0.0:
        return None
    row = row.detach().cpu().double()
    if len(row) == vocab_size:
        return row
    if len(row) > vocab_size and bool(row[vocab_size:].any()):
        raise ConfigError(
            f"the draft distribution of node {node} has {len(row)} tokens and mass beyond the target's {vocab_size}; "
            f"allowed: mass on the target's tokens only; cut the drafter's logits before warping them"
        )
    return torch.nn.functional.pad(row, (0, max(vocab_size - len(row), 0)))[:vocab_size]


def excess(target: Float[Tensor, " vocab"], proposal: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """What the target owes beyond the proposal: max(0, p - q), not normalised."""
    return (target - proposal).clamp_(min=0.0)


def normalised(weights: Float[Tensor, " vocab"], fallback: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """Weights divided by their sum; `fallback` if they are all 0."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else fallback


def without(row: Float[Tensor, " vocab"], token_ids: Sequence[int]) -> Float[Tensor, " vocab"]:
    """A distribution with some tokens removed, normalised; all 0 if nothing is left."""
    if not token_ids:
        return row
    rest = row.index_fill(0, torch.tensor(token_ids), 0.0)
    return normalised(rest, rest)


def ratio(target_prob: float, draft_prob: float) -> float:
    """How often to keep a token; 0 for one that the target never says, whatever the draft."""
    if target_prob <= 0.0:
        return 0.0
    return target_prob / draft_prob if draft_prob > 0.0 else float("inf")
