"""Why so many tokens were drafted, counted: every request of every pass under one of a few reasons."""

import re

import pytest

from foreword.engine.llm import LLM
from foreword.engine.metrics import reason_kind
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("only 12 tokens may still come", "only N tokens may still come"),
        ("2 of 14 nodes gain more than they cost: 1.7 more tokens expected", "N of N nodes gain more than they cost: N more tokens expected"),
        ("the best of 3 is accepted with probability 4%; retrying every 8 steps", "the best of N is accepted with probability N"),
        ("", "none given"),
    ],
)  # fmt: skip
def test_figures_are_left_out(reason, kind):
    assert reason_kind(reason) == kind


@pytest.mark.parametrize("policy", ["fixed", "history", "adaptive"])
def test_every_request_of_every_pass_has_a_reason(model, policy):
    with LLM(model, "suffix,recycling", policy=policy, batch_size=3, prefix_cache=False) as llm:
        prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [5, 6, 7], [9] * 30]
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        drafting = [DraftingParams(), DraftingParams(enabled=False), DraftingParams(num_speculative_tokens=2)]
        results = llm.generate(prompts, params, drafting=drafting)
        counts = llm.snapshot().plan_reasons
    assert sum(counts.values()) == sum(result.stats.num_steps for result in results) + 3  # and a pass for each prompt
    assert counts["reading the prompt"] == 3
    assert (
        counts["switched off for this request"] + counts.get("off for this pass: it reads another request's prompt", 0)
        > 0
    )
    assert len(counts) <= 16
    assert not any(re.search(r"\d", reason) for reason in counts)
