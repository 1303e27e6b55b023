"""The paper formulas, against published tables, each other and simulation."""

import math
import random

import pytest

from foreword.adapt.estimate import (
    DEVICES,
    Device,
    best_k,
    effective_overhead,
    estimate_pass,
    expected_tokens,
    operations_factor,
    ridge_tokens,
    speed_up,
    tree_expected_tokens,
)
from foreword.errors import ConfigError

EXPECTED = {  # alpha: for k = 1, 2, 3, 4, 5, 7, 10, 15
    0.5: (1.50, 1.75, 1.88, 1.94, 1.97, 1.99, 2.00, 2.00),
    0.6: (1.60, 1.96, 2.18, 2.31, 2.38, 2.46, 2.49, 2.50),
    0.7: (1.70, 2.19, 2.53, 2.77, 2.94, 3.14, 3.27, 3.32),
    0.8: (1.80, 2.44, 2.95, 3.36, 3.69, 4.16, 4.57, 4.86),
    0.9: (1.90, 2.71, 3.44, 4.10, 4.69, 5.70, 6.86, 8.15),
}
BEST = {  # c: (k, speed-up) for alpha = .5 .6 .7 .8 .9 .95
    0.01: ((5, 1.88), (7, 2.30), (9, 2.97), (14, 4.23), (24, 7.49), (40, 12.5)),
    0.05: ((3, 1.63), (4, 1.92), (6, 2.35), (8, 3.09), (13, 4.67), (21, 6.60)),
    0.10: ((2, 1.46), (3, 1.67), (4, 1.98), (6, 2.47), (10, 3.43), (15, 4.48)),
    0.30: ((1, 1.15), (1, 1.23), (2, 1.37), (3, 1.55), (5, 1.87), (8, 2.18)),
}


@pytest.mark.parametrize("alpha", EXPECTED)
def test_expected_tokens_are_those_of_the_table(alpha):
    got = [expected_tokens(alpha, k) for k in (1, 2, 3, 4, 5, 7, 10, 15)]
    assert got == pytest.approx(EXPECTED[alpha], abs=0.0051)


@pytest.mark.parametrize("c", BEST)
def test_best_k_is_that_of_the_table(c):
    for alpha, (k, factor) in zip((0.5, 0.6, 0.7, 0.8, 0.9, 0.95), BEST[c], strict=True):
        got_k, got = best_k(alpha, c)
        assert got == pytest.approx(factor, abs=0.051 if factor > 10 else 0.0051)
        assert got_k == k


def test_the_popular_example():
    """50 ms target, 5 ms draft, alpha 0.7, k 4: 2.77 tokens in 70 ms, not 3.4 tokens or 2.5 times."""
    assert expected_tokens(0.7, 4) == pytest.approx(2.7731)
    assert speed_up(0.7, 0.1, 4) == pytest.approx(1.981, abs=1e-3)


def test_expected_tokens_against_simulation():
    rng = random.Random(1)
    alpha, k, rounds = 0.73, 6, 40_000
    total = 0
    for _ in range(rounds):
        accepted = 0
        while accepted < k and rng.random() < alpha:
            accepted += 1
        total += accepted + 1
    assert total / rounds == pytest.approx(expected_tokens(alpha, k), rel=0.015)


def test_a_chain_is_a_tree_and_a_tree_is_simulated():
    chain = tree_expected_tokens(range(-1, 4), [1.0, 0.7, 0.7, 0.7, 0.7])
    assert chain == pytest.approx(expected_tokens(0.7, 4))
    parents, probs = [-1, 0, 0, 1, 1, 2], [1.0, 0.5, 0.3, 0.6, 0.2, 0.4]
    rng, total = random.Random(2), 0
    for _ in range(40_000):
        node = 0
        while True:
            total += 1
            children = [i for i, parent in enumerate(parents) if parent == node]
            draw = rng.random()
            node = -1
            for child in children:
                draw -= probs[child]
                if draw < 0:
                    node = child
                    break
            if node < 0:
                break
    assert total / 40_000 == pytest.approx(tree_expected_tokens(parents, probs), rel=0.015)


def test_it_pays_exactly_when_alpha_is_above_c():
    for alpha in (0.05, 0.3, 0.6, 0.9):
        for c in (0.01, 0.3, 0.6, 1.0):
            assert (best_k(alpha, c)[0] > 0) == (alpha > c)
            if alpha > c:
                assert best_k(alpha, c)[1] >= (1 + alpha) / (1 + c) - 1e-12


def test_wide_passes_that_cost_more_make_k_smaller():
    free, dear = best_k(0.8, 0.05), best_k(0.8, 0.05, [1 + 0.15 * k for k in range(30)])
    assert dear[0] < free[0]
    assert dear[1] < free[1]
    assert best_k(0.8, 0.0, [1.0, 3.0, 6.0]) == (0, 1.0)


def test_limits():
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.0, 5) == 1
    assert expected_tokens(0.4, 0) == 1
    assert operations_factor(0.0, 0.0, 3) == 4  # all drafted work is wasted
    assert operations_factor(1.0, 0.0, 3) == 1
    assert effective_overhead(3.0, 2.0) == 0.5


def test_ridge_and_utilisation():
    by_name = {device.name: device for device in DEVICES}
    assert by_name["A100 80G"].ridge == pytest.approx(153, abs=0.5)
    assert by_name["H100 SXM"].ridge == pytest.approx(295, abs=0.5)
    device = Device("d", 100e12, 1e12)
    one = estimate_pass(7e9, 16, device)
    assert one.is_memory_bound
    assert one.seconds == pytest.approx(0.014)
    assert one.utilisation == pytest.approx(0.01)
    at_ridge = estimate_pass(7e9, 16, device, num_tokens=round(ridge_tokens(16, device)))
    assert at_ridge.utilisation == pytest.approx(1.0)
    assert at_ridge.seconds == pytest.approx(one.seconds)
    assert not estimate_pass(7e9, 16, device, num_tokens=200).is_memory_bound
    assert ridge_tokens(8, device) == ridge_tokens(16, device) / 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: expected_tokens(1.2, 3),
        lambda: expected_tokens(0.5, -1),
        lambda: speed_up(0.5, -0.1, 3),
        lambda: speed_up(0.5, math.nan, 3),
        lambda: speed_up(0.5, math.inf, 3),
        lambda: speed_up(0.5, 0.1, 3, math.nan),
        lambda: expected_tokens(math.nan, 3),
        lambda: tree_expected_tokens([0], [1.0]),
        lambda: tree_expected_tokens([-1, 1], [1.0, 0.5]),
        lambda: estimate_pass(0, 16, DEVICES[0]),
    ],
)
def test_impossible_values_are_refused(call):
    with pytest.raises(ConfigError, match="allowed|needs"):
        call()
