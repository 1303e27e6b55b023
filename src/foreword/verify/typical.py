"""Typical acceptance [medusa24]: LOSSY. A draft token is kept if the target finds it plausible, even if it would not sample it.

    keep x  where  p(x) > min(epsilon, delta exp(-H(p)))

H is the entropy of the target's warped distribution: where the target is unsure, less is asked of a guess. The
longest path of kept nodes wins, of several the likeliest. The output is biased towards the draft distribution and loses
variety, so this verifier is chosen by name only, is never a default, and results say that it is lossy. With temperature 0
it is exact: matching.

Differences from the authors' code: the token after the path is drawn from p with the target's noise of its position
(theirs takes the argmax), and H is the entropy itself (theirs adds 1e-5 inside the logarithm).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.errors import ConfigError
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Answers, Ask, Matching, ShapedChoices, open_nodes
from foreword.verify.rows import TargetRows, ask_rows
from foreword.verify.verdict import Verdict


@dataclass(frozen=True)
class Typical:
    """Medusa's typical acceptance. Lossy."""

    epsilon: float = 0.09  # a token more probable than this is always plausible
    delta: float = 0.3  # how much less is asked where the target is unsure
    name: str = "typical"
    is_lossless: bool = False
    draft_mode: DraftMode = DraftMode.SHARED

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name} of verifier 'typical' is {value!r}; allowed: from 0 (keeps most) to 1")

    def ask(self, tree: DraftTree, first_node: int, kv_len: int, sampler: Sampler) -> Ask:
        """Logits at every open node; when greedy, what matching asks."""
        return ask_rows(tree, first_node, kv_len, sampler, open_nodes)

    def decide(self, tree: DraftTree, answers: Answers, sampler: Sampler) -> Verdict:
        """The longest path of plausible nodes, and the target's own draw after it."""
        if sampler.warp.is_greedy:
            return Matching().decide(tree, answers, sampler)
        end = self._best_end(tree, TargetRows(tree, answers, sampler))
        path = tuple(tree.path_to(end))
        accepted = tuple(tree.token_ids[node] for node in path[tree.num_known :])
        return Verdict(path, accepted, ShapedChoices(tree, answers, sampler)[end])

    def _best_end(self, tree: DraftTree, target_row: TargetRows) -> int:
        """The last node of the longest kept path; of several the likeliest, then the first."""
        root = tree.num_known - 1
        log_probs = {root: 0.0}  # of the kept nodes: of their paths
        rows: dict[int, tuple[Float[Tensor, " vocab"], float]] = {}
        for node in range(tree.num_known, tree.num_nodes):
            parent = tree.parents[node]
            if parent not in log_probs:
                continue
            if parent not in rows:
                row = target_row(parent)
                rows[parent] = row, min(self.epsilon, self.delta * math.exp(-entropy(row)))
            row, threshold = rows[parent]
            prob = float(row[tree.token_ids[node]])
            if prob > threshold:
                log_probs[node] = log_probs[parent] + math.log(prob)
        return max(log_probs, key=lambda node: (tree.depths[node], log_probs[node], -node))


def entropy(row: Float[Tensor, " vocab"]) -> float:
    """In nats."""
    return -float(torch.xlogy(row, row).sum())


def make() -> Typical:
    """For the registry."""
    return Typical()
