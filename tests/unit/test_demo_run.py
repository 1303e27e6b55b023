"""The demo asks each prompt more than once, and no drafter may gain by having seen its answer."""

import pytest

from foreword.bench.demo_run import Case, run_cases
from foreword.sampling.params import SamplingParams
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_llm import byte_tokenizer, toy_llm

TOKENIZER = byte_tokenizer("hello", " world")


@pytest.mark.parametrize("drafter", ["memory", "suffix"])
def test_later_rounds_draft_as_the_first_one_did(drafter, tmp_path):
    plain, ahead = (
        toy_llm(ToyDecoder(vocab_size=TOKENIZER.vocab_size), TOKENIZER, drafter=name) for name in ("none", drafter)
    )
    case = Case("toy", "greedy", [1, 2, 3], SamplingParams(max_tokens=60, ignore_eos=True))
    run_cases(plain, ahead, [case], rounds=3, budget_s=600, on_answer=lambda _: None)
    told = [(r.token_ids, r.stats.num_steps, r.stats.accepted_tokens) for r in case.ahead]
    assert len(told) == 3
    assert told[0] == told[1] == told[2]
