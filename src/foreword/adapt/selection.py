"""Which of the drafted nodes the target reads: those whose marginal gain is above their marginal cost.

A token is worth the time that it takes now, 1 / rate. Nodes are taken in the order of their probability of being reached (a
parent never after its child), over all requests of the pass, and the prefix with the largest

    sum of probabilities / rate - added time of the pass

is kept: that is the choice with which the rate itself, tokens over time, is highest [dinkelbach67].
"""

import math
from collections.abc import Iterable, Sequence

from foreword.adapt.budget import RetryInterval
from foreword.adapt.cost_model import PassCosts
from foreword.tree.draft_tree import DraftTree

_RETRY_NODES = 3  # the most probable ones, where none gains more than it costs but a retry is due: one tells little, more cost time
NOTHING = "nothing to propose"


def choose_nodes(
    probs: Sequence[Sequence[float]],
    num_known: Sequence[int],
    contexts: Sequence[int],
    costs: PassCosts,
    rate: float,
    most_added_s: float = math.inf,
) -> list[list[int]]:
    """The drafted nodes of each request that gain more than they cost, ascending.

    Args:
        probs: for each request, the probability that each of its nodes is reached; never above the parent's.
        num_known: for each request, its committed nodes.
        contexts: committed tokens of each.
        costs: of this machine.
        rate: tokens per second that are reached without these nodes, all requests together.
        most_added_s: what the nodes may add to the pass, whatever they promise.
    """
    pool = sorted(
        (-prob, node, request)
        for request, (own, first) in enumerate(zip(probs, num_known, strict=True))
        for node, prob in enumerate(own)
        if node >= first and prob > 0
    )
    sizes = list(num_known)
    plain_s = costs.seconds(sizes, contexts)
    expected = best_gain = 0.0
    best_count = 0
    for count, (negative, _, request) in enumerate(pool, 1):
        expected -= negative
        sizes[request] += 1
        added_s = costs.seconds(sizes, contexts) - plain_s
        if added_s > most_added_s:
            break
        gain = expected / rate - added_s
        if gain > best_gain:
            best_gain, best_count = gain, count
    nodes: list[list[int]] = [[] for _ in probs]
    for _, node, request in pool[:best_count]:
        nodes[request].append(node)
    return [sorted(own) for own in nodes]


def nodes_to_read(
    tree: DraftTree, paying: Sequence[int], probs: Sequence[float], retry: RetryInterval
) -> tuple[list[int], str]:
    """Drafted nodes to be read, and why: all where leaving some out would bend a law or break a method.

    Args:
        tree: the proposal.
        paying: its nodes that pay.
        probs: the probability that each of its nodes is reached.
        retry: whether it is time to read some though none pays.
    """
    drafted = range(tree.num_known, tree.num_nodes)
    if not drafted:
        return [], NOTHING
    if tree.has_drawn_nodes or (tree.accept_probs is None and not tree.is_chain):
        return list(drafted), f"all {len(drafted)} nodes: the rule or the method takes this proposal whole"
    fixed = _with_parents(tree, (node for node in drafted if tree.accept_probs and tree.accept_probs[node] == 0.0))
    if paying:
        expected = sum(probs[node] for node in paying)
        reason = f"{len(paying)} of {len(drafted) - len(fixed)} nodes gain more than they cost: {expected:.1f} more tokens expected"
        return sorted({*paying, *fixed}), reason
    guesses = sorted((node for node in drafted if node not in fixed), key=lambda node: (-probs[node], node))
    if guesses and retry.is_due:
        reason = f"a retry after {retry.num_skipped} steps without drafts"
        return sorted({*guesses[:_RETRY_NODES], *fixed}), reason
    best = probs[guesses[0]] if guesses else 0.0
    reason = f"no node gains more than it costs: the best of {len(guesses)} is accepted with probability {best:.0%}"
    return fixed, f"{reason}; retrying every {retry.num_steps} steps"


def _with_parents(tree: DraftTree, nodes: Iterable[int]) -> list[int]:
    """Drafted nodes and those between them and the root, ascending: in a merged tree these may be another drafter's guesses."""
    found: set[int] = set()
    for node in nodes:
        while node >= tree.num_known and node not in found:
            found.add(node)
            node = tree.parents[node]
    return sorted(found)
