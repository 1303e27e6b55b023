"""The code that runs, against the exact oracle: its law over every decision it may take, and decision by decision."""

import random
from fractions import Fraction

import pytest
import torch

from foreword.sampling.params import Warp
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import VERIFIERS, make_verifier
from foreword.verify.block import Block, verify_block
from foreword.verify.fresh_noise import pick
from foreword.verify.match import match
from foreword.verify.oracle import block_by_numbers, chain_trees, drawn_trees, prefix_of, reject_by_numbers
from foreword.verify.rejection import Rejection, reject
from foreword.verify.typical import Typical, entropy
from tests.support.toy_laws import (
    VOCAB,
    answers_for,
    as_tensors,
    distance,
    logits_of,
    mean_model,
    plain_law,
    production_law,
    random_model,
    stories,
)

LENGTH = 3
NEAR = 1e-6  # logits are float32: a probability is off by some 1e-7
RULES = {"rejection": Rejection, "block": Block}


def made(rule):
    """Makes the rule over a given chance."""
    return lambda chance: rule(chance=lambda *_: chance)


def models(seed):
    target, draft = random_model(seed, seed % 2 == 1), random_model(seed + 100, seed % 2 == 1)
    return target, mean_model(target, draft) if seed % 3 == 2 else draft


def logits_after(target):
    return lambda prefix: logits_of(target(prefix))


CASES = [("rejection", (1, 1)), ("rejection", (2, 1)), ("rejection", (3,)), ("block", (1, 1)), ("block", (1, 1, 1))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rule", "widths"), CASES, ids=str)
def test_the_law_of_the_code_is_the_targets(rule, widths, seed):
    target, draft = models(seed)
    law = production_law(made(RULES[rule]), drawn_trees(draft, widths), logits_after(target), LENGTH)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    assert distance(law, plain_law(logits_after(target), LENGTH)) < NEAR


class ForbidRepeats:
    """A processor with a memory: the last token may not come again, the one before it only reluctantly."""

    def __call__(self, logits, token_ids, prompt_len):
        logits = logits.clone()
        if len(token_ids) > prompt_len:
            logits[token_ids[-1]] = -torch.inf
        if len(token_ids) > prompt_len + 1:
            logits[token_ids[-2]] -= 1.0
        return logits


def warped(model, warp, processor=None):
    """A drafter's rows under a request's own options."""
    cache = {}

    def rows(prefix):
        if prefix not in cache:
            logits = logits_of(model(prefix))
            logits = processor(logits, [0, *prefix], 1) if processor else logits
            cache[prefix] = torch.softmax(logits.double() / warp.temperature, -1).tolist()
        return cache[prefix]

    return rows


def float_trees(rows, widths):
    """`drawn_trees` of rows of floats."""
    return drawn_trees(lambda prefix: [Fraction(p).limit_denominator(10**12) for p in rows(prefix)], widths)


@pytest.mark.parametrize(("rule", "widths"), CASES[:2] + CASES[3:4], ids=str)
def test_every_node_is_shaped_by_its_own_path_and_warped_once(rule, widths):
    target, draft = random_model(4, zeros=False), random_model(104, zeros=False)
    warp, processor = Warp(0.6), ForbidRepeats()
    expected = plain_law(logits_after(target), LENGTH, warp, processor)
    for drafter_shapes in (True, False):  # q may be anything, if it is the q drawn from
        rows = warped(draft, warp, processor if drafter_shapes else None)
        law = production_law(
            made(RULES[rule]), float_trees(rows, widths), logits_after(target), LENGTH, warp, processor
        )
        assert distance(law, expected) < NEAR
    unwarped = [(relabelled(tree, draft), weight) for tree, weight in float_trees(warped(draft, warp), widths)]
    wrong = production_law(made(RULES[rule]), unwarped, logits_after(target), LENGTH, warp, processor)
    assert distance(wrong, expected) > 100 * NEAR, "q before warping passes as lossless"


def relabelled(tree, model):
    """The tree with another model's rows, as if its nodes had been drawn from them."""
    rows = [None, *[model(prefix_of(tree, tree.parents[n])) for n in range(1, tree.num_nodes)]]
    return DraftTree(tree.token_ids, tree.parents, draft_probs=rows)


class Numbers:
    """`Chance` of given numbers, one per node and one for the extra token."""

    def __init__(self, numbers, last):
        self.numbers, self.last = numbers, last

    def accepts(self, node, prob):
        return self.numbers[node] < prob

    def draw(self, node, weights):
        return pick(weights, self.last)


@pytest.mark.parametrize("rule", RULES)
def test_each_decision_is_the_oracles(rule):
    """The same numbers give the same tokens, in floats and in rationals."""
    rng = random.Random(0)
    kept = set()
    for case in range(24):
        target, draft = models(case)
        trees = list(
            chain_trees(draft, 3) if rule == "block" else drawn_trees(draft, [(2, 1), (3,), (1, 2), (2, 2)][case % 4])
        )
        for tree, _ in rng.sample(trees, min(len(trees), 8)):
            if rule == "rejection" and case % 5 == 0:  # some guesses chosen instead of drawn
                tree.draft_probs[1] = None
            numbers, last = {n: rng.random() for n in range(tree.num_nodes)}, rng.random()
            exact = {n: Fraction(u) for n, u in numbers.items()}
            oracle = block_by_numbers if rule == "block" else reject_by_numbers
            code = verify_block if rule == "block" else reject
            rows = {
                n: torch.tensor([float(p) for p in target(prefix_of(tree, n))], dtype=torch.float64)
                for n in range(tree.num_nodes)
            }
            verdict = code(as_tensors(tree), rows.__getitem__, Numbers(numbers, last))
            assert verdict.emitted == oracle(tree, target, exact, Fraction(last))
            assert [tree.token_ids[n] for n in verdict.path[1:]] == list(verdict.accepted)
            kept.add(verdict.num_accepted)
    assert kept >= {0, 1, 2}


def random_tree(rng, num_nodes, vocab_size=4):
    token_ids, parents, taken = [0], [-1], set()
    while len(token_ids) < num_nodes:
        parent, token = rng.randrange(len(token_ids)), rng.randrange(vocab_size)
        if (parent, token) not in taken:
            taken.add((parent, token))
            token_ids.append(token)
            parents.append(parent)
    return DraftTree(token_ids, parents)


def one_hot(token, size=4):
    return torch.nn.functional.one_hot(torch.tensor(token), size).double()


def test_on_one_hot_rows_the_code_is_matching():
    """Temperature 0 without the short cut: whatever the draft rows, only the argmax is kept."""
    rng = random.Random(1)
    for _ in range(300):
        tree = random_tree(rng, rng.randint(1, 9))
        choices = {n: rng.randrange(4) for n in range(tree.num_nodes)}
        drawn = [
            None if rng.random() < 0.3 else torch.tensor([rng.random() for _ in range(4)])
            for _ in range(tree.num_nodes)
        ]
        drawn = [None if row is None else row / row.sum() for row in drawn]
        tree = DraftTree(tree.token_ids, tree.parents, draft_probs=drawn)
        chance = Numbers({n: rng.random() for n in range(tree.num_nodes)}, rng.random())
        rows = lambda n, c=choices: one_hot(c[n])  # noqa: E731
        assert reject(tree, rows, chance) == match(tree, choices)
        if tree.is_chain:
            assert verify_block(tree, rows, chance) == match(tree, choices)


@pytest.mark.parametrize("name", VERIFIERS)
def test_greedy_is_matching(name):
    rng, sampler, rule = random.Random(2), Sampler(Warp(), seed=0), make_verifier(name)
    for _ in range(50):
        tree = random_tree(rng, rng.randint(1, 9))
        choices = {n: rng.randrange(4) for n in range(tree.num_nodes)}
        ask = rule.ask(tree, 7, 3, sampler)
        assert [d.node for d in ask.draws] == [7 + n for n in range(tree.num_nodes)]
        assert not ask.logits
        assert rule.decide(tree, answers_for(tree, lambda p: torch.zeros(4), choices), sampler) == match(tree, choices)


def test_only_the_lossless_rules_say_so():
    """Typical acceptance called lossless would show: its law is another."""
    target, draft = models(0)
    trees, expected = list(chain_trees(draft, 2)), plain_law(logits_after(target), LENGTH)
    for name in VERIFIERS:
        if name == "match":
            continue  # its law: test_matching_law
        rule = type(make_verifier(name))
        law = (
            typical_law(trees, target)
            if name == "typical"
            else production_law(made(rule), trees, logits_after(target), LENGTH)
        )
        assert sum(law.values()) == pytest.approx(1, abs=1e-6)
        assert make_verifier(name).is_lossless == (distance(law, expected) < NEAR), name


def typical_law(trees, target, rule=None):
    """Typical acceptance decides without chance, but for the extra token: drawn from the target's row, as written here."""
    law, sampler = {}, Sampler(Warp(1.0), seed=0)
    for tree, weight in trees:
        made_tree = as_tensors(tree)
        verdict = (rule or Typical()).decide(made_tree, answers_for(made_tree, logits_after(target)), sampler)
        emitted = [((*verdict.accepted, t), p) for t, p in enumerate(target(verdict.accepted))]
        for prefix, prob in emitted:
            for full, mass in plain_continuation(prefix, float(weight * prob), target):
                law[full] = law.get(full, 0.0) + mass
    return law


def plain_continuation(prefix, mass, target):
    if len(prefix) >= LENGTH:
        yield prefix[:LENGTH], mass
    elif mass:
        for token, prob in enumerate(target(prefix)):
            yield from plain_continuation((*prefix, token), mass * float(prob), target)


def test_typical_keeps_what_is_plausible():
    """By hand: p = [.05, .15, .8], H = .61 nats, threshold min(.09, .3 e^-.61 = .16) = .09: guesses 1 and 2 pass, 0 does not."""
    row = torch.tensor([0.05, 0.15, 0.8], dtype=torch.float64)
    assert entropy(row) == pytest.approx(0.6129, abs=1e-4)
    sampler = Sampler(Warp(1.0), seed=0)

    def kept(rule, *guesses):
        tree = DraftTree.chain([0], guesses)
        return rule.decide(tree, answers_for(tree, lambda p: row.log().float()), sampler).accepted

    assert kept(Typical(), 1, 2, 0, 2) == (1, 2)
    assert kept(Typical(), 0, 1) == ()
    assert kept(Typical(epsilon=0.2), 1) == ()  # now .3 e^-H = .1626 is the smaller
    assert kept(Typical(epsilon=0.2, delta=0.27), 1) == (1,)  # .1463
    flat = torch.full((64,), 1 / 64).log()
    tree = DraftTree.chain([0], [5])
    assert Typical().decide(tree, answers_for(tree, lambda p: flat), sampler).accepted == (
        5,
    )  # H = log 64: .3 / 64 < 1 / 64
    branching = DraftTree([0, 1, 2, 2, 1], [-1, 0, 0, 1, 2])  # two paths of two: .15 .8 twice, the first wins
    assert Typical().decide(branching, answers_for(branching, lambda p: row.log().float()), sampler).path == (0, 1, 3)


def test_the_extra_token_of_typical_is_the_one_matching_draws():
    target, _ = models(0)
    tree = DraftTree.chain([0])
    answers = answers_for(tree, logits_after(target))
    for seed in range(20):
        sampler = Sampler(Warp(1.0), seed=seed)
        assert Typical().decide(tree, answers, sampler).extra_token == sampler.choose(answers.logits[0], [0], 1)


def test_a_draw_never_takes_a_token_of_weight_zero():
    weights = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.0], dtype=torch.float64)
    numbers = [2.0**-53, 1 / 3 - 1e-9, 1 / 3 + 1e-9, 0.5, 1 - 2.0**-53]
    assert [pick(weights, u) for u in numbers] == [1, 1, 3, 3, 3]


def test_stories_cover_everything():
    def decide(chance):
        return chance.accepts(0, 0.25), chance.draw(0, torch.tensor([1.0, 0.0, 3.0])) if chance.accepts(
            1, 0.5
        ) else None

    found = dict(stories(decide))
    assert found == {(a, b): pa * pb for a, pa in ((False, 0.75), (True, 0.25)) for b, pb in ((None, 0.5), (0, 0.125), (2, 0.375))}  # fmt: skip
    assert VOCAB == 3
