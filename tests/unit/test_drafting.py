"""Drawing guesses: their law, their order, their noise, and vocabularies that differ from the target's."""

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch

from foreword.errors import ConfigError
from foreword.sampling.draft_sampling import DraftMode, DraftPlace, DraftVocab, draw_drafts, shape_draft
from foreword.sampling.noise import gumbel
from foreword.sampling.params import Warp
from foreword.sampling.sampler import Sampler
from foreword.sampling.warp import draw, to_probs
from foreword.verify.oracle import ordered_draws

SIZE = 50
SAMPLER = Sampler(Warp(0.8), seed=3)
PLACE = DraftPlace(position=20, root_position=18, parent=1)


def random_logits(seed=0, size=SIZE):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("warp", [Warp(), Warp(0.7), Warp(1.3, top_k=9, top_p=0.9)], ids=str)
def test_with_shared_noise_a_drafter_equal_to_the_target_draws_its_token(warp):
    for seed in range(30):
        sampler, logits = Sampler(warp, seed), random_logits(seed)
        drawn = draw_drafts(logits, sampler, 1, PLACE, DraftMode.SHARED, DraftVocab(SIZE))
        assert drawn.token_ids == [draw(logits, warp, sampler.key(PLACE.position))]
        assert drawn.row is None


def test_a_reduced_vocabulary_meets_the_noise_of_the_targets_ids():
    """Whenever the target's token is in the drafter's vocabulary and scored alike, the drafter draws it."""
    ids = torch.tensor([40, 3, 7, 21, 30, 2, 11])
    vocab, hits = DraftVocab(SIZE, id_map=ids), 0
    for seed in range(60):
        sampler, logits = Sampler(Warp(2.0), seed), random_logits(seed)
        target = draw(logits, sampler.warp, sampler.key(PLACE.position))
        drawn = draw_drafts(logits[ids], sampler, 1, PLACE, DraftMode.SHARED, vocab)
        assert drawn.token_ids[0] in ids
        if target in ids:
            hits += 1
            assert drawn.token_ids == [target]
    assert hits > 5


def test_the_order_is_that_of_the_perturbed_scores():
    logits, k = random_logits(), 6
    perturbed = logits / 0.8 + gumbel(SAMPLER.key(PLACE.position), SIZE)
    drawn = draw_drafts(logits, SAMPLER, k, PLACE, DraftMode.SHARED, DraftVocab(SIZE))
    assert drawn.token_ids == perturbed.argsort(descending=True)[:k].tolist()
    probs = to_probs(logits, SAMPLER.warp)
    assert drawn.probs == pytest.approx(probs[drawn.token_ids].tolist(), rel=1e-5)


def test_greedy_takes_the_largest_logits():
    logits = random_logits(4)
    for mode in DraftMode:
        drawn = draw_drafts(logits, Sampler(Warp(), seed=1), 4, PLACE, mode, DraftVocab(SIZE))
        assert drawn.token_ids == logits.argsort(descending=True)[:4].tolist()
        assert drawn.row is None  # chosen, not drawn


def test_own_noise_draws_without_replacement():
    """Ordered pairs against their exact law; 12 cells, 1,500 draws, chi-square below its 1 - 1e-6 quantile."""
    weights = [1, 2, 3, 6]
    logits, law = torch.tensor(weights).log(), {}
    for tokens, prob in ordered_draws([Fraction(w, 12) for w in weights], 2):
        law[tokens] = float(prob)
    counts, total = Counter(), 1500
    for root in range(total):
        place = DraftPlace(position=5, root_position=root, parent=0)
        drawn = draw_drafts(logits, Sampler(Warp(1.0), seed=9), 2, place, DraftMode.OWN, DraftVocab(4))
        counts[tuple(drawn.token_ids)] += 1
    chi2 = sum((counts[pair] - total * prob) ** 2 / (total * prob) for pair, prob in law.items())
    assert chi2 < 50.0  # 11 degrees of freedom
    assert sum(law.values()) == pytest.approx(1)


def test_the_row_is_the_distribution_drawn_from():
    ids = torch.tensor([5, 1, 9])
    logits = torch.tensor([1.0, 0.0, -1.0])
    drawn = draw_drafts(logits, SAMPLER, 3, PLACE, DraftMode.OWN, DraftVocab(12, id_map=ids))
    assert drawn.row.dtype == torch.float64
    assert drawn.row.shape == (12,)
    assert float(drawn.row.sum()) == pytest.approx(1, abs=1e-12)
    expected = torch.softmax(logits.double() / 0.8, -1)
    assert drawn.row[ids].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert drawn.probs == drawn.row[drawn.token_ids].tolist()
    assert sorted(drawn.token_ids) == [1, 5, 9]


def test_a_truncated_row_gives_only_what_it_holds():
    drawn = draw_drafts(random_logits(), Sampler(Warp(1.0, top_k=3), 1), 8, PLACE, DraftMode.OWN, DraftVocab(SIZE))
    assert len(drawn.token_ids) == 3
    assert int((drawn.row > 0).sum()) == 3


def test_own_noise_differs_by_step_and_node_and_from_the_targets():
    logits, vocab = torch.zeros(SIZE), DraftVocab(SIZE)
    places = [DraftPlace(20, 18, 1), DraftPlace(20, 19, 1), DraftPlace(20, 18, 2)]
    drawn = [tuple(draw_drafts(logits, SAMPLER, 5, p, DraftMode.OWN, vocab).token_ids) for p in places]
    shared = [tuple(draw_drafts(logits, SAMPLER, 5, p, DraftMode.SHARED, vocab).token_ids) for p in places]
    assert len({*drawn, *shared}) == 4
    assert len(set(shared)) == 1


def test_padding_is_cut_before_the_warp():
    """Rows longer than the target's vocabulary: their tail could never be emitted."""
    logits = torch.cat([random_logits(), torch.full((6,), 50.0)])
    drawn = draw_drafts(logits, SAMPLER, 4, PLACE, DraftMode.OWN, DraftVocab(SIZE, draft_size=SIZE + 6))
    assert max(drawn.token_ids) < SIZE
    assert drawn.row.shape == (SIZE,)
    shorter = draw_drafts(random_logits(size=40), SAMPLER, 4, PLACE, DraftMode.OWN, DraftVocab(SIZE, draft_size=40))
    assert shorter.row.shape == (SIZE,)
    assert float(shorter.row[40:].sum()) == 0


def test_a_wrong_id_map_is_refused():
    with pytest.raises(ConfigError, match="id_map names token 12; allowed: 0 to 11"):
        DraftVocab(12, id_map=torch.tensor([3, 12]))
    with pytest.raises(ConfigError, match="a token twice"):
        DraftVocab(12, id_map=torch.tensor([3, 3]))


class ForbidLast:
    def __call__(self, logits, token_ids, prompt_len):
        assert prompt_len == 2
        return logits.index_fill(0, torch.tensor(token_ids[-1:]), -math.inf)


def test_shaping_speaks_the_targets_ids():
    ids = torch.tensor([5, 1, 9])
    vocab, sampler = DraftVocab(12, id_map=ids), Sampler(Warp(1.0), 0, processor=ForbidLast())
    shaped = shape_draft(torch.tensor([1.0, 2.0, 3.0]), sampler, vocab, [4, 4, 9], 2)
    assert shaped.tolist() == [1.0, 2.0, -math.inf]
    drawn = draw_drafts(shaped, sampler, 3, PLACE, DraftMode.OWN, vocab)
    assert sorted(drawn.token_ids) == [1, 5]
    plain = torch.tensor([1.0, 2.0, 3.0])
    assert shape_draft(plain, SAMPLER, vocab, [9], 2) is plain
