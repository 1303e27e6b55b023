"""Distribution bugs that users of other libraries reported, with the numbers of the reports: ours must give the right ones.

Where a report gives the wrong number too, the planted defect must give just that.
"""

from fractions import Fraction

import pytest
import torch

from foreword.draft.base import BaseDrafter, known_ids
from foreword.sampling.params import SamplingParams, Warp
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import make_verifier
from foreword.verify.block import Block
from foreword.verify.match import match
from foreword.verify.oracle import (
    BlockRule,
    RejectionRule,
    chain_trees,
    drawn_trees,
    law_of_outcomes,
    matching_law,
)
from foreword.verify.rejection import Rejection
from foreword.verify.rows import normalised
from foreword.verify.verdict import Verdict
from tests.support.sampled_drafter import BlurredModel, SampledDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import PROMPTS, make_engine, plain_tokens, run
from tests.support.toy_laws import as_tensors, constant, logits_of, production_law

ONE = Fraction(1)


def first_token(law) -> list[float]:
    """The marginal of the first token of a law of one token."""
    return [float(law.get((t,), 0)) for t in range(1 + max(prefix[0] for prefix in law))]


def code_law(rule, trees, target, warp=None):
    """Of the first token, with the code that runs."""
    law = production_law(lambda chance: rule(chance=lambda *_: chance), trees, lambda p: logits_of(target(p)), 1, warp)
    return first_token(law)


@pytest.mark.parametrize(("oracle", "code"), [(RejectionRule, Rejection), (BlockRule, Block)])
def test_a_greedy_draft_is_a_point_mass(oracle, code):
    """[R06] Picked greedily but judged by the draft's softmax: P(A) = .5556 instead of .5."""
    target, q = constant(0.5, 0.5), [Fraction(9, 10), Fraction(1, 10)]
    chosen = [(DraftTree([0, 0], [-1, 0], draft_probs=[None, None]), ONE)]
    claimed = [(DraftTree([0, 0], [-1, 0], draft_probs=[None, q]), ONE)]
    assert first_token(law_of_outcomes(chosen, oracle().outcomes, target, 1)) == [0.5, 0.5]
    assert first_token(law_of_outcomes(claimed, oracle().outcomes, target, 1))[0] == pytest.approx(0.5556, abs=1e-4)
    assert code_law(code, chosen, target) == pytest.approx([0.5, 0.5], abs=1e-6)


P7, Q7 = constant(0.6, 0.3, 0.1), constant(0.2, 0.2, 0.6)


def softmax_residual(p, q):
    weights = torch.softmax(torch.tensor([max(float(x - y), 0.0) for x, y in zip(p, q, strict=True)]), -1).tolist()
    return [Fraction(w).limit_denominator(10**9) for w in weights]


def test_the_residual_is_normalised_not_a_softmax():
    """[R07], first cause: [.407, .354, .239] instead of [.6, .3, .1]."""
    wrong = law_of_outcomes(chain_trees(Q7, 1), RejectionRule(residual=softmax_residual).outcomes, P7, 1)
    assert first_token(wrong) == pytest.approx([0.407, 0.354, 0.239], abs=1e-3)
    for oracle, code in ((RejectionRule, Rejection), (BlockRule, Block)):
        assert first_token(law_of_outcomes(chain_trees(Q7, 1), oracle().outcomes, P7, 1)) == [0.6, 0.3, 0.1]
        assert code_law(code, chain_trees(Q7, 1), P7) == pytest.approx([0.6, 0.3, 0.1], abs=1e-6)


class RejectAll:
    """Numbers that no ratio beats, as if every comparison had gone wrong."""

    def accepts(self, node, prob):
        return False

    def draw(self, node, weights):
        assert bool(torch.isfinite(weights).all())
        assert float(weights.sum()) > 0
        return int(weights.argmax())


@pytest.mark.parametrize("rule", [Rejection, Block])
def test_equal_rows_leave_no_residual(rule):
    """[R07], second cause: p = q and a rejection all the same: the target's row, not NaN."""
    row = torch.tensor([0.1, 0.7, 0.2], dtype=torch.float64)
    assert torch.equal(normalised(row * 0.0, row), row)
    (tree, _), *_ = chain_trees(constant(0.1, 0.7, 0.2), 3)
    logits = logits_of([0.1, 0.7, 0.2])
    sampler = Sampler(Warp(1.0), seed=0)
    from tests.support.toy_laws import answers_for

    made = as_tensors(tree)
    rejecting = rule(chance=lambda *_: RejectAll())
    assert rejecting.decide(made, answers_for(made, lambda p: logits), sampler).emitted == (1,)


@pytest.mark.parametrize("name", ["match", "rejection", "block", "typical"])
@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3])
def test_a_draft_longer_than_the_budget(name, max_tokens):
    """[R07]: p = q, k = 4, two tokens left, one, none."""
    target, rule = ToyDecoder(), make_verifier(name)
    drafter = SampledDrafter(target, (1, 1, 1, 1), rule.draft_mode, 12)
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=max_tokens)
    (request,) = run(make_engine(target, drafter, verifier=rule, num_nodes=4), PROMPTS[:1], [params])
    assert len(request.new_ids) == max_tokens
    assert request.finish_reason == "length"


class DraftsEos(BaseDrafter):
    """Three guesses, all of them the end."""

    name = "eos"

    def propose(self, requests, plans):
        return [
            DraftTree.chain(known_ids(r, p), [EOS] * min(3, p.depth) if p.num_nodes else [])
            for r, p in zip(requests, plans, strict=True)
        ]


EOS = 4


@pytest.mark.parametrize("name", ["match", "rejection", "block", "typical"])
def test_an_accepted_end_is_the_end(name):
    """[R07], third cause: the draft ends in EOS and the target takes it: no token after it, and EOS itself stays."""
    target, ended = ToyDecoder(sharpness=0.3), 0
    for seed in range(12):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=40)
        engine = make_engine(target, DraftsEos(), verifier=make_verifier(name))
        (request,) = run(engine, PROMPTS[:1], [params], eos=[EOS])
        assert EOS not in request.new_ids[:-1]
        ended += request.finish_reason == "stop"
        assert (request.finish_reason == "stop") == (request.new_ids[-1] == EOS)
    assert ended > 6


@pytest.mark.parametrize("rule", [Rejection, Block])
@pytest.mark.parametrize(
    ("temperature", "right"), [(0.1, [1.0, 0.0, 0.0]), (0.5, [0.867, 0.117, 0.016]), (1.0, [0.665, 0.245, 0.090])]
)
def test_the_targets_row_is_warped(rule, temperature, right):
    """[R08] Logits [2, 1, 0]: unwarped, every temperature would give .665."""
    law = production_law(
        lambda chance: rule(chance=lambda *_: chance),
        chain_trees(constant(0.2, 0.3, 0.5), 2),
        lambda prefix: torch.tensor([2.0, 1.0, 0.0]),
        1,
        Warp(temperature),
    )
    assert first_token(law) == pytest.approx(right, abs=1e-3)


def redraw(tree, choices):
    """Emits another sample than the one it compared. The spare node's draw stands for that sample: the row is constant."""
    verdict = match(DraftTree.chain([0], tree.token_ids[1:2]), choices)
    return verdict if verdict.num_accepted else Verdict((0,), (), choices[2])


def test_matching_emits_the_sample_it_compared():
    """[R09] p = [.5, .5], q = [.9, .1]: exact; drawing again after a mismatch gives [.7, .3]."""
    p, q = constant(0.5, 0.5), constant(0.9, 0.1)
    assert first_token(matching_law(chain_trees(q, 1), p, 1, match)) == [0.5, 0.5]
    assert first_token(matching_law(chain_trees(q, 2), p, 1, redraw)) == pytest.approx([0.7, 0.3], abs=1e-12)
    assert code_law(Rejection, chain_trees(q, 1), p) == pytest.approx([0.5, 0.5], abs=1e-6)


P10 = constant(0.4, 0.3, 0.2, 0.1)


def test_chosen_siblings_are_lossless():
    """[R10] B, then C, chosen: the marginal is p; so with matching."""
    tree = [(DraftTree([0, 1, 2], [-1, 0, 0]), ONE)]
    assert first_token(law_of_outcomes(tree, RejectionRule().outcomes, P10, 1)) == [0.4, 0.3, 0.2, 0.1]
    assert first_token(matching_law(tree, P10, 1, match)) == [0.4, 0.3, 0.2, 0.1]
    assert code_law(Rejection, tree, P10) == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_drawn_siblings_are_lossless(count):
    """[R10], second: without replacement; q must be what is left of it."""
    q = constant(0.1, 0.2, 0.3, 0.4)
    trees = list(drawn_trees(q, (count,)))
    assert first_token(law_of_outcomes(trees, RejectionRule().outcomes, P10, 1)) == [0.4, 0.3, 0.2, 0.1]
    assert code_law(Rejection, trees, P10) == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-6)


@pytest.mark.parametrize("drawn", [False, True])
def test_equal_siblings_are_lossless(drawn):
    """[R10], third: the same guess twice has one chance."""
    q = constant(0.1, 0.2, 0.3, 0.4)
    trees = []
    for tree, weight in drawn_trees(q, (2,)):
        tokens = [0, tree.token_ids[1], tree.token_ids[1], tree.token_ids[2]]
        rows = [None, *[q(())] * 3] if drawn else None
        trees.append((DraftTree(tokens, [-1, 0, 0, 0], draft_probs=rows), weight))
    assert code_law(Rejection, trees, P10) == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-6)


@pytest.mark.parametrize("name", ["match", "rejection", "block"])
def test_mixed_temperatures_in_one_batch(name):
    """[R11] T = [0, .7, 0], k = 3: greedy rows are their solo runs, the sampled one its own, no count ever falls."""
    target, rule = ToyDecoder(), make_verifier(name)
    options = [
        SamplingParams(max_tokens=24),
        SamplingParams(temperature=0.7, seed=3, max_tokens=24),
        SamplingParams(max_tokens=24),
    ]

    def engine():
        drafter = SampledDrafter(BlurredModel(target, 0.6), (1, 1, 1), rule.draft_mode, 12)
        return make_engine(target, drafter, verifier=rule, num_nodes=3, batch_size=3)

    together = run(engine(), PROMPTS[:3], options)
    for request, prompt, params in zip(together, PROMPTS, options, strict=False):
        assert request.new_ids == run(engine(), [prompt], [params])[0].new_ids
        if params.temperature == 0:
            assert request.new_ids == plain_tokens(target, prompt, params)
        stats = request.stats
        assert 0 <= stats.accepted_tokens <= stats.drafted_tokens
        assert all(a <= d for a, d in zip(stats.accepted_at_depth, stats.drafted_at_depth, strict=True))
        assert stats.num_steps + stats.accepted_tokens == len(request.new_ids) - 1


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_seeds_decide(name):
    """[R12], [R13], [R14]: the same seed, the same tokens, alone or not, first or later; another seed, others."""
    target, rule = ToyDecoder(sharpness=0.5), make_verifier(name)
    drafter = SampledDrafter(BlurredModel(target, 0.6), (1, 1, 1), rule.draft_mode, 12)
    engines = {
        chunk: make_engine(target, drafter, verifier=rule, num_nodes=3, prefill_chunk=chunk) for chunk in (1, 2, 4)
    }

    def answer(seed, temperature=1.0, beside=(), chunk=4):
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=24)
        return run(engines[chunk], [PROMPTS[0], *beside], [params] * (1 + len(beside)))[0].new_ids

    assert answer(42) == answer(42) == answer(42, beside=PROMPTS[1:4])
    assert answer(42) == answer(42, chunk=1) == answer(42, chunk=2), "however the prompt is read"
    assert answer(42) != answer(43)
    assert len({tuple(answer(None)) for _ in range(10)}) == 10
    assert answer(1, temperature=0.0) == answer(2, temperature=0.0)
