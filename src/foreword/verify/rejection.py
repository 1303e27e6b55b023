"""Verification by rejection: the target's distribution with the most accepted tokens, for drafts that were sampled.

One guess x, drawn from q, is kept with probability min(1, p(x) / q(x)); if it is not, the token is drawn from what
the target owes beyond the draft, norm(max(0, p - q)) [leviathan23, chen23]. Several guesses after one node, drawn
without replacement, are tried in the order they were drawn [eagle24, sequoia24, rsd24]:

    R = p,  D = q
    for each sibling x:   keep it with probability R(x) / D(x), else
                          R = norm(max(0, R - D)),  D = norm(D without x)
    none kept: draw the token from R

So a chain is the case of one sibling. A guess that was chosen, not drawn (top-k, an n-gram: no row in `draft_probs`)
is a draw from a point mass: kept with probability R(x), else R loses x and is renormalised.

The output has the distribution of plain sampling but not its tokens: those depend on the drafts too. With temperature 0 the
rule is matching. All of it is float64; the comparison is strict, so that a token the target never says is never kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from foreword.errors import ConfigError
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Answers, Ask, Matching, open_nodes
from foreword.verify.fresh_noise import Chance, FreshNoise
from foreword.verify.rows import TargetRows, ask_rows, draft_row, excess, normalised, ratio, without
from foreword.verify.verdict import Verdict

Row = Float[Tensor, " vocab"]


@dataclass(frozen=True)
class Rejection:
    """Leviathan's and Chen's verifier on chains, multi-round without replacement on trees."""

    name: str = "rejection"
    is_lossless: bool = True
    draft_mode: DraftMode = DraftMode.OWN
    chance: Callable[[Sampler, int, int], Chance] = FreshNoise  # of a step, from sampler, root position and step

    def ask(self, tree: DraftTree, first_node: int, kv_len: int, sampler: Sampler) -> Ask:
        """Logits at every open node; when greedy, what matching asks. `ConfigError` refuses a tree of loose shape."""
        return ask_rows(tree, first_node, kv_len, sampler, self._judged_nodes)

    def decide(self, tree: DraftTree, answers: Answers, sampler: Sampler) -> Verdict:
        """Walk down; at each node try its children in the order they were drawn."""
        if sampler.warp.is_greedy:
            return Matching().decide(tree, answers, sampler)
        chance = self.chance(sampler, len(answers.token_ids) - 1, answers.step)
        return reject(tree, TargetRows(tree, answers, sampler), chance)

    def _judged_nodes(self, tree: DraftTree) -> Sequence[int]:
        refuse_loose_shape(tree, self.name)
        return open_nodes(tree)


def reject(tree: DraftTree, target_row: Callable[[int], Row], chance: Chance) -> Verdict:
    """The walk itself.

    Args:
        tree: the proposal, with `draft_probs` where nodes were drawn.
        target_row: the target's distribution after a node.
        chance: decides and draws.
    """
    siblings = _siblings(tree)
    node = tree.num_known - 1
    path, accepted = list(range(tree.num_known)), []
    while True:
        child, row = _try_siblings(tree, siblings[node], target_row(node), chance)
        if child is None:
            return Verdict(tuple(path), tuple(accepted), chance.draw(places_after_root(tree, node), row))
        path.append(child)
        accepted.append(tree.token_ids[child])
        node = child


def _try_siblings(tree: DraftTree, siblings: list[int], row: Row, chance: Chance) -> tuple[int | None, Row]:
    """The sibling that is kept, if any, and what the token is drawn from if none is."""
    tried: list[int] = []
    for node in siblings:
        token = tree.token_ids[node]
        if token in tried:
            continue  # the same guess twice: it has had its chance
        drawn_from = draft_row(tree, node, len(row))
        proposal = None if drawn_from is None else without(drawn_from, tried)
        keep_prob = float(row[token]) if proposal is None else ratio(float(row[token]), float(proposal[token]))
        if chance.accepts(places_after_root(tree, node), keep_prob):
            return node, row
        owed = without(row, [token]) if proposal is None else excess(row, proposal)
        row = normalised(owed, row)
        tried.append(token)
    return None, row


def _siblings(tree: DraftTree) -> list[list[int]]:
    """For each node, its drafted children in the order they were drawn."""
    siblings: list[list[int]] = [[] for _ in range(tree.num_nodes)]
    for node in range(tree.num_known, tree.num_nodes):
        siblings[tree.parents[node]].append(node)
    return siblings


def places_after_root(tree: DraftTree, node: int) -> int:
    """A node's number counted from the root: noise must not depend on how many pending tokens are read before it."""
    return node - (tree.num_known - 1)


def refuse_loose_shape(tree: DraftTree, verifier: str) -> None:
    """Raise `ConfigError` if which nodes are in the tree may depend on what was drawn."""
    if not tree.shape_is_fixed and tree.has_drawn_nodes:
        raise ConfigError(
            f"verifier {verifier!r} cannot verify this drafter's trees: their shape depends on which tokens were sampled "
            f"(nodes were reranked, pruned or merged), so a node's draft distribution no longer says how probable it was "
            f"to be there; allowed: chains, and trees in which every sampled node stays; use verifier 'match', which "
            f"takes any tree"
        )


def make() -> Rejection:
    """For the registry."""
    return Rejection()
