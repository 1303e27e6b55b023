"""Rejection keeps the target's law exactly, on chains and on trees drawn without replacement: rationals, no tolerance."""

from fractions import Fraction
from itertools import product

import pytest

from foreword.tree.draft_tree import DraftTree
from foreword.verify.oracle import (
    RejectionRule,
    chain_trees,
    drawn_trees,
    expected_len,
    law_of_outcomes,
    removed,
    residual,
    target_law,
)
from tests.support.toy_laws import VOCAB, mean_model, random_model

LENGTH = 3
ZERO, ONE = Fraction(0), Fraction(1)
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def normalise(row, fallback):
    total = sum(row)
    return [x / total for x in row] if total else fallback


def absolute_differences(p, q):
    return normalise([abs(x - y) for x, y in zip(p, q, strict=True)], p)


# Each defect is one line; every one of them must be seen below.
MUTANTS = {
    "resample from the target": RejectionRule(residual=lambda p, q: p),
    "resample from the draft": RejectionRule(residual=lambda p, q: q),
    "residual of absolute differences": RejectionRule(residual=absolute_differences),
    "accept with p": RejectionRule(accept=lambda p, q: p),
    "accept always": RejectionRule(accept=lambda p, q: ONE),
    "accept never": RejectionRule(accept=lambda p, q: ZERO),
    "accept with q / p": RejectionRule(accept=lambda p, q: min(ONE, q / p) if p else ONE),
    "5 % too lenient": RejectionRule(accept=lambda p, q: min(ONE, Fraction(21, 20) * p / q)),
}
TREE_MUTANTS = {
    **MUTANTS,
    "as if drawn with replacement": RejectionRule(remove=lambda q, token: q),
    "removed but not renormalised": RejectionRule(remove=lambda q, t: [x * (i != t) or Fraction(1, 10**9) for i, x in enumerate(q)]),
    "point masses": RejectionRule(accept=lambda p, q: p, residual=lambda p, q: removed(p, max(range(VOCAB), key=q.__getitem__))),
}  # fmt: skip
SHAPES = [(1,), (1, 1), (1, 1, 1), (2,), (3,), (2, 1), (1, 2), (1, 3), (2, 2), (3, 1), (1, 2, 1)]


def models(seed):
    """Every other pair has impossible tokens; every fourth drafter is close to its target."""
    target, draft = random_model(seed, seed % 2 == 1), random_model(seed + 100, seed % 2 == 1)
    return target, mean_model(target, draft) if seed % 4 == 2 else draft


def law(seed, widths, rule):
    target, draft = models(seed)
    return law_of_outcomes(drawn_trees(draft, widths), rule.outcomes, target, LENGTH), target_law(target, LENGTH)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("widths", SHAPES, ids=str)
def test_the_law_of_rejection_is_the_targets(widths, seed):
    emitted, plain = law(seed, widths, RejectionRule())
    assert emitted == plain


@pytest.mark.parametrize("name", MUTANTS)
def test_the_law_of_a_chain_sees_a_wrong_rule(name):
    laws = (law(seed, (1, 1), MUTANTS[name]) for seed in range(4))
    assert any(emitted != plain for emitted, plain in laws), f"{name} passes as lossless"


@pytest.mark.parametrize("name", TREE_MUTANTS)
def test_the_law_of_a_tree_sees_a_wrong_rule(name):
    laws = (law(seed, (2, 1), TREE_MUTANTS[name]) for seed in range(4))
    assert any(emitted != plain for emitted, plain in laws), f"{name} passes as lossless"


def drawn_with_replacement(draft, count):
    """One node whose children are independent draws, later ones that repeat an earlier one left out."""
    row = draft(())
    for tokens in product(range(VOCAB), repeat=count):
        weight = ONE
        for token in tokens:
            weight *= row[token]
        kept = list(dict.fromkeys(tokens))
        if weight:
            yield DraftTree([0, *kept], [-1, *[0] * len(kept)], draft_probs=[None, *[row] * len(kept)]), weight


def rows_replaced(trees, model):
    """The same trees, their draft rows claimed to be another model's."""
    for tree, weight in trees:
        rows = [None, *[model(tuple(tree.token_ids[m] for m in tree.path_to(tree.parents[n])[1:])) for n in range(1, tree.num_nodes)]]  # fmt: skip
        yield DraftTree(tree.token_ids, tree.parents, draft_probs=rows), weight


def squared(model):
    """A model at half the temperature."""
    return lambda prefix: normalise([p * p for p in model(prefix)], None)


def test_repeats_left_out_of_independent_draws_do_no_harm():
    """What is left was drawn without replacement, and how many are left says nothing about which. Checked as drawn with
    replacement (no sibling removed from q) it is biased."""
    mixed_up, wrong = RejectionRule(remove=lambda q, token: q), []
    for seed in range(4):
        target, draft = models(seed)
        trees = list(drawn_with_replacement(draft, 3))
        assert law_of_outcomes(trees, RejectionRule().outcomes, target, LENGTH) == target_law(target, LENGTH)
        wrong.append(law_of_outcomes(trees, mixed_up.outcomes, target, LENGTH) != target_law(target, LENGTH))
    assert any(wrong)


@pytest.mark.parametrize("widths", [(1, 1), (2,)], ids=str)
def test_the_draft_rows_must_be_those_drawn_from(widths):
    """q before warping: drawn at half the temperature, checked against the plain row."""
    target, draft = models(0)
    wrong = rows_replaced(drawn_trees(squared(draft), widths), draft)
    assert law_of_outcomes(wrong, RejectionRule().outcomes, target, LENGTH) != target_law(target, LENGTH)
    right = rows_replaced(drawn_trees(squared(draft), widths), squared(draft))
    assert law_of_outcomes(right, RejectionRule().outcomes, target, LENGTH) == target_law(target, LENGTH)


def dropped_by_their_token(trees):
    """Reranked: a drawn node 2 is thrown away with all below it."""
    for tree, weight in trees:
        gone = {n for n in range(1, tree.num_nodes) if any(tree.token_ids[m] == 2 for m in tree.path_to(n)[1:])}
        yield tree.subset([n for n in range(tree.num_nodes) if n not in gone]), weight


def test_a_shape_that_depends_on_the_draw_is_biased():
    """Why `shape_is_fixed` exists."""
    target, draft = models(0)
    trees = list(dropped_by_their_token(drawn_trees(draft, (2, 1))))
    assert not all(tree.shape_is_fixed for tree, _ in trees)
    assert law_of_outcomes(trees, RejectionRule().outcomes, target, LENGTH) != target_law(target, LENGTH)


def stopped_after(trees, token):
    """A chain that ends after a drawn token the drafter was unsure of: that token stays, so the shape counts as fixed."""
    for tree, weight in trees:
        ends = [n for n in range(1, tree.num_nodes) if tree.token_ids[n] == token] or [tree.num_nodes - 1]
        yield tree.subset(range(ends[0] + 1)), weight


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_may_end_after_any_token(seed):
    target, draft = models(seed)
    trees = stopped_after(chain_trees(draft, 3), 1)
    assert law_of_outcomes(trees, RejectionRule().outcomes, target, LENGTH) == target_law(target, LENGTH)


@pytest.mark.parametrize("seed", range(4))
def test_chosen_guesses_are_point_masses(seed):
    """Deterministic siblings, and a drawn one after a chosen one it was kept from."""
    target, draft = models(seed)
    best = DraftTree([0, 1, 2, 0, 1], [-1, 0, 0, 1, 1])
    assert law_of_outcomes([(best, ONE)], RejectionRule().outcomes, target, LENGTH) == target_law(target, LENGTH)
    row = [Fraction(1, 6), Fraction(1, 3), Fraction(1, 2)]
    mixed = [
        (DraftTree([0, 1, t], [-1, 0, 0], draft_probs=[None, None, row]), prob)
        for t, prob in enumerate(removed(row, 1))
        if prob
    ]
    assert law_of_outcomes(mixed, RejectionRule().outcomes, target, LENGTH) == target_law(target, LENGTH)


@pytest.mark.parametrize("seed", range(4))
def test_as_many_siblings_as_tokens_always_hold_the_right_one(seed):
    """The cover property [sequoia24]: a step over K = V siblings a node emits depth + 1 tokens, always."""
    target, draft = random_model(seed, seed % 2 == 1), random_model(seed + 100, zeros=False)
    assert expected_len(drawn_trees(draft, (VOCAB,)), RejectionRule().outcomes, target) == 2
    target, draft = random_model(seed, seed % 2 == 1, vocab_size=2), random_model(seed + 100, False, vocab_size=2)
    assert expected_len(drawn_trees(draft, (2, 2, 2)), RejectionRule().outcomes, target) == 4


@pytest.mark.parametrize("seed", range(4))
def test_more_siblings_keep_more(seed):
    target, draft = random_model(seed, zeros=False), random_model(seed + 100, zeros=False)
    lens = [expected_len(drawn_trees(draft, (k,)), RejectionRule().outcomes, target) for k in (1, 2, 3)]
    assert lens[0] < lens[1] < lens[2]
    overlap = sum(min(p, q) for p, q in zip(target(()), draft(()), strict=True))
    assert expected_len(chain_trees(draft, 1), RejectionRule().outcomes, target) == 1 + overlap


def test_the_residual_of_equal_rows_is_the_row():
    row = [Fraction(1, 2), Fraction(1, 2), ZERO]
    assert residual(row, row) == row
