"""Draft trees under a grammar: what it forbids goes, what it forces comes."""

from collections.abc import Sequence
from dataclasses import replace

from foreword.sampling.grammar_matcher import GrammarMatcher
from foreword.tree.draft_tree import DraftTree

MAX_FORCED = 16  # most nodes that are added to a tree
SOURCE = "grammar"  # what is said to have proposed them


def guided_tree(tree: DraftTree, grammar: GrammarMatcher, answer: Sequence[int], max_depth: int) -> DraftTree:
    """`tree` without the drafted nodes that cannot follow `answer`, and with the tokens that must.

    Forced tokens are drafts like any other, which the mask makes the target accept. They grow from the last committed node
    and from every leaf, no deeper than `max_depth` tokens.

    Drafts that come with the row they were drawn from are left alone, since dropping some would change the law of
    the rest; the target's mask rejects those that are forbidden.
    """
    if tree.has_drawn_nodes:
        return tree
    paths: dict[int, list[int]] = {tree.num_known - 1: list(answer)}
    for node in range(tree.num_known, tree.num_nodes):
        if tree.parents[node] in paths:
            path = [*paths[tree.parents[node]], tree.token_ids[node]]
            if grammar.allows(path):
                paths[node] = path
    if len(paths) <= tree.num_drafted:  # no node was drawn, so the shape is as fixed as before
        fixed = tree.shape_is_fixed
        tree = replace(tree.subset([*range(tree.num_known - 1), *paths]), shape_is_fixed=fixed)
    return _with_forced(tree, grammar, answer, max_depth)


def _with_forced(tree: DraftTree, grammar: GrammarMatcher, answer: Sequence[int], max_depth: int) -> DraftTree:
    tokens, parents = list(tree.token_ids), list(tree.parents)
    children = [dict(c) for c in tree.children]
    root = tree.num_known - 1
    leaves = [node for node in range(root, tree.num_nodes) if node == root or not children[node]]
    for leaf in leaves:
        drafted = [tree.token_ids[n] for n in tree.path_to(leaf)[tree.num_known :]]
        node = leaf
        for token in grammar.forced([*answer, *drafted])[: max(0, max_depth - len(drafted))]:
            child = children[node].get(token)
            if child is None:
                if len(tokens) - tree.num_nodes == MAX_FORCED:
                    break
                child = len(tokens)
                tokens.append(token)
                parents.append(node)
                children.append({})
                children[node][token] = child
            node = child
    num_added = len(tokens) - tree.num_nodes
    if not num_added:
        return tree
    probs = tree.accept_probs
    return replace(
        tree,
        token_ids=tokens,
        parents=parents,
        accept_probs=None if probs is None else [*probs, *[1.0] * num_added],
        draft_probs=None,
        sources=[*(tree.sources or [""] * tree.num_nodes), *[SOURCE] * num_added],
    )
