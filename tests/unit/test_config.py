"""Names from other engines are understood; wrong ones get the nearest right one."""

import pytest

from foreword.config import ModelSpec
from foreword.draft.draft_config import DraftConfig, draft_config, parse_draft_config
from foreword.draft.lookup.ngram import NgramOptions
from foreword.errors import ConfigError, UnknownNameError


def test_the_spelling_of_other_engines():
    vllm = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    assert parse_draft_config(vllm) == DraftConfig(
        method="ngram", num_speculative_tokens=5, options=NgramOptions(prompt_lookup_max=4, prompt_lookup_min=2)
    )
    assert parse_draft_config({"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2}) == DraftConfig(
        method="ngram", num_speculative_tokens=10, options={"prompt_lookup_max": 2}
    )
    assert draft_config("draft_model=some/folder", 3) == DraftConfig(
        method="draft_model", path="some/folder", num_speculative_tokens=3
    )


def test_wrong_settings_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'num_speculative_tokens'"):
        parse_draft_config({"num_speculative_token": 5})
    with pytest.raises(ConfigError, match="gives num_speculative_tokens twice"):
        parse_draft_config({"num_assistant_tokens": 5, "num_speculative_tokens": 4})
    with pytest.raises(ConfigError, match="num_speculative_tokens is -1"):
        draft_config("ngram", -1)
    with pytest.raises(ConfigError, match="num_speculative_tokens is 'many'"):
        draft_config({"num_speculative_tokens": "many"})


def test_sizes_of_the_default_model():
    spec = ModelSpec(
        family="llama", hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
        vocab_size=49_152, context_len=8192, tied_head=True,
    )  # fmt: skip
    assert spec.num_parameters == 134_515_008  # the count on the model's card
    assert spec.num_streamed_parameters == spec.num_parameters
    assert spec.kv_bytes_per_token(4) == 30 * 2 * 3 * 64 * 4
    assert spec.group_size == 3


def test_impossible_heads_are_refused():
    sizes = {
        "family": "llama",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_layers": 1,
        "vocab_size": 9,
        "context_len": 9,
    }
    with pytest.raises(ConfigError, match="3 query heads cannot be shared by 2"):
        ModelSpec(**sizes, num_heads=3, num_kv_heads=2, head_dim=4)
    with pytest.raises(ConfigError, match="head_dim is 5"):
        ModelSpec(**sizes, num_heads=2, num_kv_heads=2, head_dim=5)
