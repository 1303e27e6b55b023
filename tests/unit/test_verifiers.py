"""Rules by name, and the trees they refuse."""

import pytest
import torch

from foreword.errors import ConfigError, UnknownNameError
from foreword.sampling.draft_sampling import DraftMode
from foreword.sampling.noise import Stream, uniform_of
from foreword.sampling.params import Warp
from foreword.sampling.sampler import Sampler
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import VERIFIERS, Verifier, make_verifier
from foreword.verify.fresh_noise import FreshNoise
from foreword.verify.rows import draft_row
from foreword.verify.typical import Typical

SAMPLER = Sampler(Warp(1.0), seed=5)
ROW = torch.tensor([0.25, 0.25, 0.5])
BRANCHING = DraftTree([0, 1, 2, 1], [-1, 0, 0, 1], draft_probs=[None, ROW, ROW, ROW])


def test_every_rule_by_name():
    assert list(VERIFIERS) == ["match", "rejection", "block", "typical"]
    rules = [make_verifier(name) for name in VERIFIERS]
    assert [rule.name for rule in rules] == list(VERIFIERS)
    assert all(isinstance(rule, Verifier) for rule in rules)
    assert [rule.is_lossless for rule in rules] == [True, True, True, False]
    assert [rule.draft_mode is DraftMode.OWN for rule in rules] == [False, True, True, False]


def test_an_object_is_a_rule_too():
    rule = Typical(epsilon=0.2)
    assert make_verifier(rule) is rule
    with pytest.raises(UnknownNameError, match="did you mean 'rejection'"):
        make_verifier("rejecton")


@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_rule_is_refused():
    with pytest.raises(ConfigError, match="verifier is 3; allowed: a name"):
        make_verifier(3)  # type: ignore[arg-type]


def test_options_of_typical():
    with pytest.raises(ConfigError, match="epsilon of verifier 'typical' is 1.5"):
        Typical(epsilon=1.5)
    with pytest.raises(ConfigError, match="delta of verifier 'typical' is -0.1"):
        Typical(delta=-0.1)


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_a_tree_that_lost_drawn_nodes_is_refused(name):
    reranked = BRANCHING.subset([0, 1, 3])
    assert reranked.is_chain
    assert not reranked.shape_is_fixed
    with pytest.raises(ConfigError, match="shape depends on which tokens were sampled.*use verifier 'match'"):
        make_verifier(name).ask(reranked, 0, 3, SAMPLER)
    make_verifier("match").ask(reranked, 0, 3, SAMPLER)
    make_verifier("typical").ask(reranked, 0, 3, SAMPLER)
    make_verifier(name).ask(reranked, 0, 3, Sampler(Warp(), seed=0))  # greedy: all rules are matching


def test_a_chosen_tree_may_have_any_shape():
    """Nothing was drawn, so nothing can depend on it: EAGLE-2's reranked top-k trees are point masses."""
    chosen = DraftTree([0, 1, 2, 1], [-1, 0, 0, 1]).subset([0, 1, 3])
    assert make_verifier("rejection").ask(chosen, 4, 3, SAMPLER).logits == [4, 5, 6]


def test_block_refuses_branches():
    assert make_verifier("rejection").ask(BRANCHING, 0, 3, SAMPLER).logits == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="'block' checks chains.*use verifier 'rejection'"):
        make_verifier("block").ask(BRANCHING, 0, 3, SAMPLER)


def test_cutting_by_depth_keeps_the_shape_fixed():
    assert BRANCHING.pruned(1).shape_is_fixed
    assert BRANCHING.pruned(1).num_nodes == 3
    assert BRANCHING.subset(range(4)).shape_is_fixed
    assert not DraftTree([0, 1], [-1, 0], shape_is_fixed=False).pruned(5).shape_is_fixed
    assert BRANCHING.has_drawn_nodes
    assert not DraftTree([0, 1], [-1, 0], draft_probs=[None, None]).has_drawn_nodes


def test_rows_of_another_width():
    """A drafter's padded or shorter vocabulary."""
    tree = DraftTree.chain([0], [1])
    short = DraftTree(tree.token_ids, tree.parents, draft_probs=[None, torch.tensor([0.5, 0.5])])
    assert draft_row(short, 1, 4).tolist() == [0.5, 0.5, 0.0, 0.0]
    padded = DraftTree(tree.token_ids, tree.parents, draft_probs=[None, torch.tensor([0.5, 0.5, 0.0])])
    assert draft_row(padded, 1, 2).tolist() == [0.5, 0.5]
    beyond = DraftTree(tree.token_ids, tree.parents, draft_probs=[None, torch.tensor([0.5, 0.4, 0.1])])
    with pytest.raises(ConfigError, match="node 1 has 3 tokens and mass beyond the target's 2"):
        draft_row(beyond, 1, 2)
    impossible = DraftTree(tree.token_ids, tree.parents, draft_probs=[None, torch.tensor([1.0, 0.0])])
    assert draft_row(impossible, 1, 2) is None  # never drawn from this row: chosen


def test_numbers_serve_once():
    """No two of the numbers of a request are the same, over steps, nodes and purposes; a position met again has others."""
    keys = {
        SAMPLER.step_key(stream, root, node, step)
        for stream in (Stream.ACCEPT, Stream.RESIDUAL, Stream.DRAFT)
        for root, step in ((9, 0), (10, 0), (11, 1), (14, 2))
        for node in range(6)
    }
    assert len(keys) == 3 * 4 * 6
    assert SAMPLER.key(10) not in keys
    numbers = [uniform_of(key) for key in keys]
    assert 0 < min(numbers) < max(numbers) < 1
    assert uniform_of((1 << 64) - 1) < 1
    assert uniform_of(0) > 0
    first, again = FreshNoise(SAMPLER, 10, 0), FreshNoise(SAMPLER, 11, 1)
    decisions = [[chance.accepts(node, 0.5) for node in range(1, 40)] for chance in (first, again)]
    assert decisions[0] != decisions[1]
    assert decisions[0][1:] != decisions[1][:-1]  # node n of one step and n - 1 of the next stand at the same position


def test_the_chance_of_a_step_has_the_probability_it_is_asked_for():
    for prob, low, high in ((0.0, 0, 0), (0.25, 420, 580), (1.0, 2000, 2000), (float("inf"), 2000, 2000)):
        count = sum(FreshNoise(SAMPLER, root, root).accepts(1, prob) for root in range(2000))
        assert low <= count <= high  # 500 +- 4 standard deviations for a quarter
