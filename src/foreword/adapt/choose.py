"""Which drafted nodes to let the target read: as long as the next one brings more than it costs.

A token is worth the time that it takes now, 1 / rate. Nodes are taken in the order of their chance of being reached (a
parent never after its child), over all requests of the pass, and the prefix with the largest

    sum of chances / rate - added time of the pass

is kept, within what the pass may be made longer: that is the choice with which the rate itself, tokens over time, is highest [dinkelbach67].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foreword.adapt.cost import PassCosts


@dataclass(frozen=True)
class Choice:
    """Nodes kept of each request (ascending; drafted ones only), what they bring and what they cost."""

    nodes: list[list[int]]
    expected: float  # accepted tokens
    added_s: float


def choose_nodes(
    chances: Sequence[Sequence[float]],
    first_drafted: Sequence[int],
    contexts: Sequence[int],
    costs: PassCosts,
    rate: float,
    most_added_s: float = math.inf,
) -> Choice:
    """The drafted nodes that pay.

    Args:
        chances: for each request, the chance that each of its nodes is reached; never above the parent's.
        first_drafted: for each request, its number of known nodes.
        contexts: committed tokens of each.
        costs: of this machine.
        rate: tokens a second that are reached without these nodes, all requests together.
        most_added_s: what the nodes may add to the pass, whatever they promise.
    """
    pool = sorted(
        (-chance, node, request)
        for request, (own, first) in enumerate(zip(chances, first_drafted, strict=True))
        for node, chance in enumerate(own)
        if node >= first and chance > 0
    )
    sizes = list(first_drafted)
    plain_s = costs.seconds(sizes, contexts)
    expected = best_gain = best_expected = best_added = 0.0
    best_count = 0
    for count, (negative, _, request) in enumerate(pool, 1):
        expected -= negative
        sizes[request] += 1
        added_s = costs.seconds(sizes, contexts) - plain_s
        if added_s > most_added_s:
            break
        gain = expected / rate - added_s
        if gain > best_gain:
            best_gain, best_count, best_expected, best_added = gain, count, expected, added_s
    nodes: list[list[int]] = [[] for _ in chances]
    for _, node, request in pool[:best_count]:
        nodes[request].append(node)
    return Choice([sorted(own) for own in nodes], best_expected, best_added)
