"""The whole engine, sampled: drafts drawn at random, verified, committed, drafted again; four tokens from prompt to end.

The exact-law tests see a wrong rule however small its error, but not noise that is used twice. This test does: it counts the
answers of `NUM_REQUESTS` seeded requests over a toy model and compares the counts with the exact law by a chi-square test.

False alarm: 1e-4 a test, once: the seeds are fixed, so the result changes only when noise or rules do.
Power: a defect with w^2 = sum (p - p0)^2 / p0 over the 81 answers is seen with probability 0.95 or more from w^2 = 0.06 on (noncentral
chi-square, 80 degrees of freedom, 1,500 answers). The defects below have 0.07 to 2; a leniency of 5 % has 0.002 and is left to
the exact tests.
"""

from collections import Counter
from itertools import product

import torch

from foreword.sampling.params import SamplingParams
from tests.support.sampled_drafter import BlurredModel, SampledDrafter
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import make_engine, run

VOCAB, LENGTH, PROMPT = 3, 4, [1]
NUM_REQUESTS, FALSE_ALARM = 1500, 1e-4
TARGET = ToyDecoder(VOCAB, seed=3, sharpness=1.2)
TEMPERATURE = 0.9


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


def answers(rule, widths, num_requests=NUM_REQUESTS, mode=None, num_seeds=None):
    drafter = SampledDrafter(BlurredModel(TARGET, 0.5), widths, mode or rule.draft_mode, VOCAB)
    engine = make_engine(TARGET, drafter, verifier=rule, num_nodes=8, batch_size=16)
    params = [SamplingParams(temperature=TEMPERATURE, seed=i, max_tokens=LENGTH) for i in range(num_requests)]
    return run(engine, [PROMPT] * num_requests, params)


def p_value(requests, law) -> float:
    """Of the chi-square test; answers expected less than 5 times are counted together."""
    counts = Counter(tuple(request.new_ids) for request in requests)
    assert set(counts) <= {answer for answer, prob in law.items() if prob > 0}
    cells, rest = [], [0.0, 0.0]
    for answer, prob in law.items():
        expected = prob * len(requests)
        if expected >= 5:
            cells.append((counts[answer], expected))
        else:
            rest[0] += counts[answer]
            rest[1] += expected
    cells.append(tuple(rest))
    chi2 = sum((seen - expected) ** 2 / expected for seen, expected in cells if expected)
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2).double(), torch.tensor(chi2 / 2).double()))
