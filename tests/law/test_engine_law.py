"""The whole engine, sampled: drafts drawn at random, verified, committed, drafted again; four tokens from prompt to end.

The exact-law tests see a wrong rule however small its error, but not noise that is used twice. This test does: it counts
the answers of seeded requests over a toy model and compares the counts with the exact law by a chi-square test.

False alarm: 1e-4 a test, once: the seeds are fixed, so that a result changes only when noise or rules do.
Power: over all 81 answers a defect of w^2 = sum (p - p0)^2 / p0 is seen with probability 0.95 from w^2 = 0.095 on
(noncentral chi-square, 80 degrees of freedom, 1,000 requests). One number for all guesses of a step has 0.1, a number met
again in the next step 0.8, accepting always 3. A leniency of 5 % has about 0.002: that is for the exact tests.
"""

from collections import Counter
from itertools import product

import pytest
import torch

from foreword.sampling.params import SamplingParams
from foreword.verify.base import make_verifier
from foreword.verify.fresh_noise import FreshNoise
from foreword.verify.rejection import Rejection
from tests.support.sampled_drafter import BlurredModel, SampledDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import make_engine, run

VOCAB, LENGTH, PROMPT, TEMPERATURE = 3, 4, [1], 0.9
NUM_REQUESTS, FALSE_ALARM = 1000, 1e-4
TARGET = ToyDecoder(VOCAB, seed=3, sharpness=1.2)
DRAFT = BlurredModel(TARGET, share=0.3)

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture(scope="module")
def exact_law() -> dict:
    """Probability of every answer, from the model's definition."""
    law = {}
    for answer in product(range(VOCAB), repeat=LENGTH):
        prob = 1.0
        for i, token in enumerate(answer):
            text = [*PROMPT, *answer[:i]]
            row = torch.softmax(TARGET.logits_after(text, len(text) - 1).double() / TEMPERATURE, -1)
            prob *= float(row[token])
        law[answer] = prob
    return law


def answers(rule, widths, num_requests=NUM_REQUESTS):
    drafter = SampledDrafter(DRAFT, widths, rule.draft_mode, VOCAB)
    engine = make_engine(TARGET, drafter, verifier=rule, num_nodes=8, batch_size=16)
    params = [SamplingParams(temperature=TEMPERATURE, seed=i, max_tokens=LENGTH) for i in range(num_requests)]
    return run(engine, [PROMPT] * num_requests, params)


def p_value(requests, law) -> float:
    """Of the chi-square test; answers expected less than 5 times are counted together."""
    counts = Counter(tuple(request.new_ids) for request in requests)
    assert set(counts) <= law.keys()
    cells, rare = [], [0.0, 0.0]
    for answer, prob in law.items():
        expected = prob * len(requests)
        if expected >= 5:
            cells.append((counts[answer], expected))
        else:
            rare[0] += counts[answer]
            rare[1] += expected
    cells.append(tuple(rare))
    chi2 = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    half_freedom, half_chi2 = torch.tensor([(len(cells) - 1) / 2, chi2 / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, half_chi2))


@pytest.mark.parametrize(
    ("name", "widths", "num_requests"),
    [
        ("match", (1, 1), 600),  # its tokens are plain decoding's anyway
        ("rejection", (1, 1, 1), NUM_REQUESTS),
        ("rejection", (2, 2), NUM_REQUESTS),
        ("block", (1, 1, 1), NUM_REQUESTS),
    ],
    ids=str,
)
def test_the_engine_draws_from_the_targets_law(name, widths, num_requests, exact_law):
    requests = answers(make_verifier(name), widths, num_requests)
    assert p_value(requests, exact_law) > FALSE_ALARM
    accepted = sum(r.stats.accepted_tokens for r in requests)
    drafted = sum(r.stats.drafted_tokens for r in requests)
    assert 0.2 < accepted / drafted < 0.95  # both branches of every rule are at work


class AcceptAlways(FreshNoise):
    def accepts(self, node, prob):
        return True


class KeyedByStepAlone(FreshNoise):
    """The pass that ends the prompt and the one after it are both step 0."""

    def __init__(self, sampler, root_position, step):
        super().__init__(sampler, 0, step)


@pytest.mark.parametrize(
    ("chance", "widths", "num_requests"),
    [(AcceptAlways, (1, 1), 200), (KeyedByStepAlone, (), 300)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_planted_defect_is_seen(chance, widths, num_requests, exact_law):
    requests = answers(Rejection(chance=chance), widths, num_requests)
    assert p_value(requests, exact_law) < FALSE_ALARM
