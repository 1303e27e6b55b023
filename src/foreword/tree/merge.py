"""Several proposals for one request as one tree: their union, every token path once.

    a   the ─ cat ─ sat          b   the ─ cat ─ ran         both   the ─ cat ─ sat
                                          └ dog                          │     └ ran
                                                                         └ dog

The target reads a shared path once. `locate` finds a proposal's own nodes again in what was read.
"""

from collections.abc import Sequence

from foreword.tree.draft_tree import DraftTree

_FADING = 0.6  # probability of a node, given its parent, where a drafter gives none


def expected_probs(tree: DraftTree) -> Sequence[float]:
    """The probability that each node is reached; an estimate by depth where the drafter gives none."""
    if tree.accept_probs is not None:
        return tree.accept_probs
    return [_FADING ** max(0, depth - tree.num_known + 1) for depth in tree.depths]


def expected_accepted(tree: DraftTree) -> float:
    """Expected number of accepted tokens."""
    return float(sum(expected_probs(tree)[tree.num_known :]))


def merge(trees: Sequence[DraftTree]) -> DraftTree:
    """The union of proposals with the same committed tokens; a node's probability is the highest that any of them gives it.

    Its source is the first that has it.

    Nodes that were drawn at random lose the distribution they came from: which of several proposals a node came from
    can depend on its token. They count as chosen, which every rule takes, if with fewer accepted tokens.
    """
    if len(trees) == 1:
        return trees[0]
    first = trees[0]
    num_known = first.num_known
    token_ids, parents = list(first.token_ids[:num_known]), list(range(-1, num_known - 1))
    probs, children = [1.0] * num_known, [{} for _ in range(num_known)]
    sources = [""] * num_known
    for tree in trees:
        assert list(tree.token_ids[: tree.num_known]) == token_ids[:num_known], "proposals for different texts"
        tree_probs = expected_probs(tree)
        number = list(range(num_known))
        for node in range(num_known, tree.num_nodes):
            parent, token = number[tree.parents[node]], tree.token_ids[node]
            merged = children[parent].get(token)
            if merged is None:
                merged = children[parent][token] = len(token_ids)
                token_ids.append(token)
                parents.append(parent)
                probs.append(0.0)
                sources.append(tree.sources[node] if tree.sources else "")
                children.append({})
            probs[merged] = max(probs[merged], tree_probs[node])
            number.append(merged)
    return DraftTree(token_ids, parents, num_known, probs, sources=sources if any(sources) else None)


def locate(own: DraftTree, within: DraftTree) -> list[int]:
    """For each node of `own`, the node of `within` with the same path; -1 where there is none.

    Both begin with the same root; any tokens may follow it as known ones in either.
    """
    if own is within:
        return list(range(own.num_nodes))
    found = [0]
    for node in range(1, own.num_nodes):
        parent = found[own.parents[node]]
        found.append(within.children[parent].get(own.token_ids[node], -1) if parent >= 0 else -1)
    return found
