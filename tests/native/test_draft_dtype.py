"""A drafter's weights in fewer bits than the target's: other guesses, the same tokens."""

import pytest

from foreword.draft.draft_config import DraftConfig
from foreword.draft.heads.eagle import Eagle3Options
from foreword.engine.llm import LLM
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams

PROMPTS = ["abc face", "bad", 'he {"ab":']


def decoder_of(llm: LLM):
    drafter = llm.engine.parts.drafter
    return drafter.reader.decoder if hasattr(drafter, "reader") else drafter.follower.decoder


@pytest.mark.parametrize(("method", "usual"), [("draft_model", "int8"), ("eagle2", "int4"), ("eagle3", "int4")])
def test_its_words_are_the_targets_whatever_the_bits(method, usual, files):
    path = {"draft_model": files.draft, "eagle2": files.eagle, "eagle3": files.eagle3}[method]
    model = files.load("native")
    params = SamplingParams(max_tokens=16, temperature=0.7, seed=3)
    expected = [result.token_ids for result in LLM(model, "none").generate(PROMPTS, params)]
    sizes = {}
    for dtype in (None, "int8", "int4"):
        llm = LLM(model, DraftConfig(method=method, path=str(path), options={"draft_dtype": dtype}), policy="fixed")
        assert [result.token_ids for result in llm.generate(PROMPTS, params)] == expected
        sizes[dtype] = decoder_of(llm).num_weight_bytes
    assert sizes["int4"] < sizes["int8"]
    assert sizes[None] == sizes[usual]
    assert model.runtime.dtype == "int8", "the target's own is left alone"


def test_a_runtime_without_such_weights_says_so(files):
    config = DraftConfig(method="eagle3", path=str(files.eagle3), options={"draft_dtype": "int4"})
    with pytest.raises(
        ConfigError, match=r"draft_dtype is 'int4', which the native runtime knows; .* on torch.*float32"
    ):
        LLM(files.load("torch"), config)


def test_other_names_are_refused():
    with pytest.raises(ConfigError, match="draft_dtype is 'fp4'; allowed: int8, int4"):
        Eagle3Options(draft_dtype="fp4")
