"""Matching keeps the target's law exactly: rationals, every draft and every outcome, no tolerance."""

import random
from fractions import Fraction

import pytest

from foreword.tree.draft_tree import DraftTree
from foreword.verify.match import match
from foreword.verify.oracle import chain_trees, matching_law, target_law
from foreword.verify.verdict import Verdict

VOCAB, LENGTH = 3, 3
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def random_model(seed: int, zeros: bool):
    """Context-dependent rows of small fractions; with `zeros` some tokens are impossible."""
    rows = {}

    def model(prefix):
        if prefix not in rows:
            rng = random.Random(f"{seed}/{prefix}")
            weights = [rng.randint(0 if zeros else 1, 4) for _ in range(VOCAB)]
            weights[rng.randrange(VOCAB)] += 1
            rows[prefix] = [Fraction(w, sum(weights)) for w in weights]
        return rows[prefix]

    return model


def random_tree(rng: random.Random, num_nodes: int) -> DraftTree:
    token_ids, parents, taken = [0], [-1], set()
    while len(token_ids) < num_nodes:
        parent, token = rng.randrange(len(token_ids)), rng.randrange(VOCAB)
        if (parent, token) not in taken:
            taken.add((parent, token))
            token_ids.append(token)
            parents.append(parent)
    return DraftTree(token_ids, parents)


# Each defect is one line; every one of them must be seen below.
def accept_always(tree, choices):
    last = max(range(tree.num_nodes), key=lambda n: tree.depths[n])
    path = tree.path_to(last)
    return Verdict(tuple(path), tuple(tree.token_ids[n] for n in path[1:]), choices[last])


def resample_on_a_match(tree, choices):
    verdict = match(tree, choices)
    end = verdict.path[-1]
    again = choices[tree.num_nodes - 1] if tree.num_nodes > 1 else choices[end]
    return Verdict(verdict.path, verdict.accepted, again if verdict.num_accepted else verdict.extra_token)


def redraw_after_a_mismatch(tree, choices):
    verdict = match(tree, choices)
    return Verdict(verdict.path, verdict.accepted, (verdict.extra_token + 1) % VOCAB)


def use_the_childs_draw(tree, choices):
    """Off by one: the draw after the drafted token decides about the token itself."""
    child = tree.children[0].get(choices[min(1, tree.num_nodes - 1)])
    return Verdict((0, child), (tree.token_ids[child],), choices[child]) if child else Verdict((0,), (), choices[0])


def extra_token_of_the_root(tree, choices):
    verdict = match(tree, choices)
    return Verdict(verdict.path, verdict.accepted, choices[0])


MUTANTS = [accept_always, resample_on_a_match, redraw_after_a_mismatch, use_the_childs_draw, extra_token_of_the_root]


def chain_case(seed: int):
    zeros = seed % 2 == 1
    return list(chain_trees(random_model(seed + 100, zeros), 2)), random_model(seed, zeros)


def tree_case(seed: int):
    rng = random.Random(seed)
    trees = [(random_tree(rng, n), Fraction(1, 4)) for n in (1, 3, 4, 5)]
    return trees, random_model(seed, seed % 2 == 1)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("case", [chain_case, tree_case])
def test_the_law_of_matching_is_the_targets(case, seed):
    trees, target = case(seed)
    assert matching_law(trees, target, LENGTH, match) == target_law(target, LENGTH)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("case", [chain_case, tree_case])
def test_the_law_sees_a_wrong_rule(case, mutant):
    cases = (case(seed) for seed in range(3))
    seen = (matching_law(trees, target, LENGTH, mutant) != target_law(target, LENGTH) for trees, target in cases)
    assert any(seen), f"{mutant.__name__} passes as lossless"


def test_the_laws_add_up_to_one():
    trees, target = tree_case(3)
    assert sum(target_law(target, LENGTH).values()) == 1
    assert sum(matching_law(trees, target, LENGTH, match).values()) == 1
