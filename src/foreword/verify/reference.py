"""The slow, exact oracle of every verification rule: rationals and enumeration, no tensors.

A rule is lossless if the law of the tokens it emits, continued by the target's own rows, is the target's law. Here that law is
added up exactly, over all drafts and all outcomes of the rule, in `Fraction`. A test then asks for equality with no tolerance, and
plants defects that must be seen.

For matching the outcome of the target's draws is enumerated: a table that gives one token for every prefix that a walk may reach,
weighted by the target's probabilities. That the draws at different positions are independent is what position-keyed noise
provides.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import product

from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict

Prefix = tuple[int, ...]
Row = Sequence[Fraction]
Model = Callable[[Prefix], Row]
Law = dict[Prefix, Fraction]
MatchRule = Callable[[DraftTree, Mapping[int, int]], Verdict]


def target_law(target: Model, length: int) -> Law:
    """The law of `length` tokens of plain sampling."""
    return extend({(): Fraction(1)}, target, length)


def extend(law: Law, target: Model, length: int) -> Law:
    """Continue every prefix with the target's own rows up to `length` tokens; longer ones are cut."""
    done: Law = {}
    for prefix, weight in law.items():
        if len(prefix) >= length:
            _add(done, prefix[:length], weight)
            continue
        for token, prob in enumerate(target(prefix)):
            if prob:
                for full, mass in extend({(*prefix, token): weight * prob}, target, length).items():
                    _add(done, full, mass)
    return done


def matching_law(trees: Iterable[tuple[DraftTree, Fraction]], target: Model, length: int, rule: MatchRule) -> Law:
    """The law of `length` tokens when `rule` checks a random tree (given with its probability) and the target goes on."""
    law: Law = {}
    for tree, tree_weight in trees:
        for choices, weight in _choice_tables(tree, target):
            for full, mass in extend({rule(tree, choices).emitted: tree_weight * weight}, target, length).items():
                _add(law, full, mass)
    return law


def prefix_of(tree: DraftTree, node: int) -> Prefix:
    """The drafted tokens from the last known node down to `node`."""
    return tuple(tree.token_ids[n] for n in tree.path_to(node) if n >= tree.num_known)


def chain_trees(draft: Model, length: int, root: int = 0) -> Iterable[tuple[DraftTree, Fraction]]:
    """Every chain of `length` drafted tokens with its probability under the drafter."""

    def grow(prefix: Prefix, weight: Fraction) -> Iterable[tuple[Prefix, Fraction]]:
        if len(prefix) == length:
            yield prefix, weight
            return
        for token, prob in enumerate(draft(prefix)):
            if prob:
                yield from grow((*prefix, token), weight * prob)

    for prefix, weight in grow((), Fraction(1)):
        yield DraftTree.chain([root], prefix), weight


def _choice_tables(tree: DraftTree, target: Model) -> Iterable[tuple[dict[int, int], Fraction]]:
    nodes = range(tree.num_known - 1, tree.num_nodes)
    rows = [[(token, prob) for token, prob in enumerate(target(prefix_of(tree, node))) if prob] for node in nodes]
    for outcome in product(*rows):
        weight = Fraction(1)
        for _, prob in outcome:
            weight *= prob
        yield dict(zip(nodes, (token for token, _ in outcome), strict=True)), weight


def _add(law: Law, key: Prefix, weight: Fraction) -> None:
    law[key] = law.get(key, Fraction(0)) + weight
