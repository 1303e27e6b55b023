"""Block verification: the draft tokens of a chain are verified together [block25].

Token by token, a guess is lost as soon as one before it fails. Here each prefix of the chain is judged as a whole,
and the longest that passes is kept; no rule for a single chain keeps more on average. With x_1..x_n drawn from
q_1..q_n:

    P_0 = 1,   P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i))
    R_i = sum over x of max(0, P_i p_{i+1}(x) - q_{i+1}(x))
    prefix i passes with probability h_i = R_i / (R_i + 1 - P_i),   the whole chain with h_n = P_n
    keep the longest prefix that passes, each judged by its own number
    the next token: from norm(max(0, P_i p_{i+1} - q_{i+1})) after prefix i < n, from p_{n+1} after all n

A prefix that failed below a longer one that passed is kept all the same. The numbers beyond the kept prefix have been
looked at, so they may never be used again (`Sampler.step_key`); the drafter's draws there as well. Chosen guesses are
point masses, as in `verify.rejection`; with temperature 0 the rule is matching.

Of a tree of deterministic drafts the most promising path is verified, as a chain: the distribution is kept, the other
branches are not used. *rejection* makes use of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.errors import ConfigError
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.tree.merge import expected_probs
from foreword.verify.base import Answers, Ask, Matching
from foreword.verify.fresh_noise import Chance, FreshNoise
from foreword.verify.rejection import places_after_root, refuse_loose_shape
from foreword.verify.rows import TargetRows, ask_rows, draft_row, excess, normalised, ratio
from foreword.verify.verdict import Verdict

Row = Float[Tensor, " vocab"]


@dataclass(frozen=True)
class Block:
    """Block verification, for chains and for one path of a chosen tree."""

    name: str = "block"
    is_lossless: bool = True
    draft_mode: DraftMode = DraftMode.OWN
    chance: Callable[[Sampler, int, int], Chance] = FreshNoise  # of a step, from sampler, root position and step

    def ask(self, tree: DraftTree, first_node: int, kv_len: int, sampler: Sampler) -> Ask:
        """Logits along the judged path; when greedy, what matching asks. `ConfigError` for branches that were drawn."""
        return ask_rows(tree, first_node, kv_len, sampler, self._judged_nodes)

    def _judged_nodes(self, tree: DraftTree) -> Sequence[int]:
        refuse_loose_shape(tree, self.name)
        if not tree.is_chain and tree.has_drawn_nodes:
            raise ConfigError(
                "verifier 'block' checks chains, and this drafter draws a tree with branches; "
                "allowed: chains; use verifier 'rejection' or 'match'"
            )
        return judged_path(tree)[tree.num_known - 1 :]

    def decide(self, tree: DraftTree, answers: Answers, sampler: Sampler) -> Verdict:
        """Judge every prefix; keep the longest that passes."""
        if sampler.warp.is_greedy:
            return Matching().decide(tree, answers, sampler)
        path = judged_path(tree)
        chain = tree if tree.is_chain else tree.subset(path)
        chance = self.chance(sampler, len(answers.token_ids) - 1, answers.step)
        verdict = verify_block(chain, TargetRows(chain, answers, sampler), chance)
        return replace(verdict, path=tuple(path[node] for node in verdict.path))


def judged_path(tree: DraftTree) -> Sequence[int]:
    """All nodes of a chain; of a tree, those up to the leaf with the most expected accepted tokens before it."""
    if tree.is_chain:
        return range(tree.num_nodes)
    probs = expected_probs(tree)
    accepted = [0.0] * tree.num_nodes  # expected, along the path to each node
    for node in range(tree.num_known, tree.num_nodes):
        accepted[node] = accepted[tree.parents[node]] + probs[node]
    return tree.path_to(max(range(tree.num_nodes), key=lambda node: (accepted[node], tree.depths[node], -node)))


def verify_block(tree: DraftTree, target_row: Callable[[int], Row], chance: Chance) -> Verdict:
    """The rule itself, on a chain; arguments as `verify.rejection.reject`."""
    end = tree.num_known - 1  # the end of the longest prefix that passed
    row = target_row(end)
    weight = 1.0  # P
    next_weights = normalised(_owed(tree, end, weight, row), row)
    for node in range(tree.num_known, tree.num_nodes):
        weight = min(1.0, weight * _ratio(tree, node, row))
        if weight == 0.0:
            break  # neither this prefix nor a longer one can pass
        row = target_row(node)
        owed = _owed(tree, node, weight, row)
        passes = _pass_prob(weight, float(owed.sum()), node == tree.num_nodes - 1)
        if chance.accepts(places_after_root(tree, node), passes):
            end, next_weights = node, normalised(owed, row)
    path = tuple(range(end + 1))
    accepted = tuple(tree.token_ids[n] for n in path[tree.num_known :])
    return Verdict(path, accepted, chance.draw(places_after_root(tree, end), next_weights))


def _ratio(tree: DraftTree, node: int, row: Row) -> float:
    """How p of a node's token compares with q, which is 1 where it was chosen."""
    token = tree.token_ids[node]
    proposal = draft_row(tree, node, len(row))
    return ratio(float(row[token]), 1.0 if proposal is None else float(proposal[token]))


def _owed(tree: DraftTree, node: int, weight: float, row: Row) -> Row:
    """What the token after `node` is drawn from if the prefix up to it is kept, not normalised."""
    if node == tree.num_nodes - 1:
        return row
    proposal = draft_row(tree, node + 1, len(row))
    if proposal is None:
        proposal = torch.zeros_like(row)
        proposal[tree.token_ids[node + 1]] = 1.0
    return excess(weight * row, proposal)


def _pass_prob(weight: float, owed: float, is_whole: bool) -> float:
    """The probability that a prefix passes its own test."""
    if is_whole:
        return weight
    return owed / (owed + 1.0 - weight) if owed > 0.0 else 0.0


def make() -> Block:
    """For the registry."""
    return Block()
