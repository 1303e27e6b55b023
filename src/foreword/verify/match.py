"""Verification by matching: the default, and the only verifier whose tokens are exactly those of plain decoding.

At every node the target draws its own token with the noise of that position (greedy is the noise-free case). The walk starts at
the last committed token and follows the child that equals the sampled token; the first sampled token without a matching child is
emitted as the extra token.

    emitted_1 = argmax_x [ log p(x | prefix) + g(position, x) ],   and so on along the path

Each emitted token is what plain decoding draws at that place with the same noise, so the output equals plain decoding's token by
token: not only in distribution, and whatever the drafts were. Sources: sampling and following a tree is [specinfer23]'s naive rule;
sharing Gumbel noise by position is a coupling in the sense of [daliri25].
"""

from collections.abc import Mapping

from foreword.sampling.warp import NO_TOKEN, not_numbers
from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict


def match(tree: DraftTree, choices: Mapping[int, int]) -> Verdict:
    """Walk the tree along the target's own draws.

    Args:
        tree: the proposal.
        choices: the token that the target sampled after each node, for the last committed token and all drafted nodes.

    Raises:
        CheckpointError: the walk reaches a node at which the target's scores are not numbers.
    """
    node = tree.num_known - 1
    path = list(range(tree.num_known))
    accepted: list[int] = []
    while True:
        token = choices[node]
        if token == NO_TOKEN:
            raise not_numbers()
        child = tree.children[node].get(token)
        if child is None:
            return Verdict(tuple(path), tuple(accepted), token)
        path.append(child)
        accepted.append(token)
        node = child


def known_only(tree: DraftTree) -> Verdict:
    """The verdict on a chunk that ends before the prompt does: keep it, emit nothing."""
    return Verdict(tuple(range(tree.num_known)))
