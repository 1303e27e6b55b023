"""Block verification keeps the target's law exactly and keeps at least as many guesses as rejection: rationals, no tolerance."""

from fractions import Fraction

import pytest

from foreword.verify.oracle import (
    BlockRule,
    RejectionRule,
    block_chance,
    block_owed,
    chain_trees,
    expected_len,
    law_of_outcomes,
    target_law,
)
from tests.support.toy_laws import constant, mean_model, random_model

LENGTH = 4
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def first_failure(passed):
    return next((i for i, ok in enumerate(passed) if not ok), len(passed))


MUTANTS = {
    "stop at the first failure": BlockRule(choose=first_failure),
    "pass with P": BlockRule(chance=lambda weight, owed: weight),
    "accept always": BlockRule(chance=lambda weight, owed: Fraction(1)),
    "residual without P": BlockRule(owed=lambda weight, p, q: block_owed(Fraction(1), p, q)),
    "residual of absolute differences": BlockRule(
        owed=lambda weight, p, q: [abs(weight * x - y) for x, y in zip(p, q, strict=True)]
    ),
    "weight capped too late": BlockRule(
        weight=lambda weight, p, q: weight * p / q,
        chance=lambda weight, owed: block_chance(min(weight, Fraction(1)), owed),
    ),
    "weight of the last guess only": BlockRule(weight=lambda weight, p, q: min(Fraction(1), p / q)),
    "q / p": BlockRule(weight=lambda weight, p, q: min(Fraction(1), weight * q / p) if p else Fraction(1)),
    "5 % too lenient": BlockRule(weight=lambda weight, p, q: min(Fraction(1), weight * Fraction(21, 20) * p / q)),
}


def models(seed):
    target, draft = random_model(seed, seed % 2 == 1), random_model(seed + 100, seed % 2 == 1)
    return target, mean_model(target, draft) if seed % 3 == 2 else draft


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_law_of_block_verification_is_the_targets(depth, seed):
    target, draft = models(seed)
    emitted = law_of_outcomes(chain_trees(draft, depth), BlockRule().outcomes, target, LENGTH)
    assert emitted == target_law(target, LENGTH)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_law_sees_a_wrong_rule(name):
    def is_wrong(seed):
        target, draft = models(seed)
        emitted = law_of_outcomes(chain_trees(draft, 3), MUTANTS[name].outcomes, target, LENGTH)
        return emitted != target_law(target, LENGTH)

    assert any(is_wrong(seed) for seed in range(4)), f"{name} passes as lossless"


@pytest.mark.parametrize("seed", range(8))
def test_block_keeps_at_least_as_much_as_token_by_token(seed):
    target, draft = models(seed)
    for depth in (1, 2, 3):
        token = expected_len(chain_trees(draft, depth), RejectionRule().outcomes, target)
        block = expected_len(chain_trees(draft, depth), BlockRule().outcomes, target)
        assert block >= token
        assert depth > 1 or block == token
    if seed % 2 == 0:
        assert block > token  # rows without zeros: guesses after a bad one may make up for it


def test_what_block_gains_by_hand():
    """Two guesses, p = [1/3, 2/3], q = [2/3, 1/3] throughout, worked out on paper.

    Token by token: 1 + b + b^2 with b = 2/3, 19/9. Block: prefix 1 is A (2/3) with P = 1/2, or B with P = 1.
    A: R = (1/2 2/3 - 1/3)+ = 0 passes never by itself; B: R = 1/3, P = 1 passes always.
    Whole chains: AA 4/9 with 1/4, AB 2/9 with 1, BA 2/9 with 1/2, BB 1/9 with 1.
    E = 1 + 1 P(>=1) + 1 P(2) = 1 + (4/9 1/4 + 2/9 + 3/9) + (4/9 1/4 + 2/9 + 1/9 + 1/9) = 1 + 6/9 + 5/9 = 20/9.
    """
    target, draft = constant("1/3", "2/3"), constant("2/3", "1/3")
    third = constant(Fraction(1, 3), Fraction(2, 3))
    assert third(()) == [Fraction(1, 3), Fraction(2, 3)] == target(())
    assert expected_len(chain_trees(draft, 2), RejectionRule().outcomes, target) == Fraction(19, 9)
    assert expected_len(chain_trees(draft, 2), BlockRule().outcomes, target) == Fraction(20, 9)
