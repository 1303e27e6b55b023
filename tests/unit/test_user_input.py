"""What users write, right and wrong: what means something is taken, the rest is one clear message."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from foreword.draft.draft_config import DraftConfig, draft_config, parse_draft_config
from foreword.draft.drafter_options import DrafterOptions, option
from foreword.engine.llm import LLM
from foreword.engine.prompts import prompt_ids, split_prompts
from foreword.errors import ConfigError
from foreword.runtime.base import Draw
from foreword.runtime.native_runtime import _draw_columns
from foreword.runtime.select import choose_runtime
from foreword.sampling.params import SamplingParams, Warp
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_llm import byte_tokenizer, toy_llm

# --- drafters

METHODS = {
    "exit_layer": "layerskip",
    "model": "draft_model",
    "suffix_decoding_file": "suffix",
    "cascade_merge": "suffix,ngram",
    "draft_tree_width": "eagle3",
    "draft_confidence_threshold": "draft_model",
    "recycling_top_k": "recycling",
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": None}, "method is None; allowed: a text"),
        ({"exit_layer": "2"}, "exit_layer is '2'; allowed: a whole number, 1 or above, or None"),
        ({"exit_layer": 1.5}, "exit_layer is 1.5; allowed: a whole number, 1 or above, or None"),
        ({"exit_layer": True}, "exit_layer is True; allowed: a whole number, 1 or above, or None"),
        ({"model": 5}, "path is 5; allowed: a text or None"),
        ({"suffix_decoding_file": 3}, "suffix_decoding_file is 3; allowed: a text or None"),
        ({"cascade_merge": "false"}, "cascade_merge is 'false'; allowed: true or false"),
        ({"draft_tree_width": 1.0}, "draft_tree_width is 1.0; allowed: a whole number"),
        ({"draft_confidence_threshold": True}, "draft_confidence_threshold is True; allowed: a number"),
        ({"draft_confidence_threshold": float("nan")}, "draft_confidence_threshold is nan; allowed: a number from 0"),
        ({"draft_noise": "own"}, "unknown setting 'draft_noise'"),
        ({"prompt_lookup_max": 0}, "prompt_lookup_max is 0; allowed: a whole number, 1 to 32"),
        ({"recycling_top_k": 65}, "recycling_top_k is 65; allowed: a whole number, 1 to 64"),
        ({"num_speculative_tokens": 513}, "num_speculative_tokens is 513; allowed: a whole number, 0 to 512"),
        ({"prompt_lookup_min": 4}, "1 <= prompt_lookup_min <= prompt_lookup_max"),
    ],
)
def test_draft_settings_of_a_wrong_type_or_size_are_refused(options, message):
    method = next((method for option, method in METHODS.items() if option in options), "ngram")
    with pytest.raises(ConfigError, match=message):
        parse_draft_config({"method": method} | options)


@pytest.mark.parametrize("drafter", [None, 5, ["ngram"]])
def test_a_drafter_that_is_neither_name_nor_settings_is_refused(drafter):
    with pytest.raises(ConfigError, match="allowed: a name, a mapping or a DraftConfig"):
        draft_config(drafter)


def test_a_whole_number_is_a_number_and_a_path_is_a_text():
    options = {"cascade_threshold": 2, "exit_layer": np.int64(3)}
    config = DraftConfig(method="layerskip,draft_model", path=Path("a") / "b", options=options)
    assert (config.cascade.cascade_threshold, config.members[0].options.exit_layer) == (2, 3)
    assert config.path == config.members[1].path == str(Path("a") / "b")


# --- sampling


def test_none_is_nothing():
    names = ("stop", "stop_token_ids", "bad_words", "logit_bias", "logits_processors")
    assert SamplingParams(**dict.fromkeys(names)) == SamplingParams()


def test_integers_of_numpy_become_plain_ones():
    params = SamplingParams(
        seed=np.int64(3), max_tokens=np.int32(5), stop_token_ids=np.array([1, 2]), logit_bias={np.int64(4): 1}
    )
    assert (params.seed, params.max_tokens, params.stop_token_ids) == (3, 5, (1, 2))
    assert params.logit_bias == ((4, 1.0),)
    assert {type(value) for value in (params.seed, params.max_tokens, *params.stop_token_ids)} == {int}


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-5, 1, 1e6])
def test_temperatures_that_can_be_computed_are_taken(temperature):
    assert SamplingParams(temperature=temperature).temperature == temperature


@pytest.mark.parametrize("temperature", [10**400, 1e-38, 9e-6, -1, float("inf"), float("nan"), True, "1", None])
def test_other_temperatures_are_refused(temperature):
    with pytest.raises(ConfigError, match=r"temperature is .*; allowed: 0 for greedy, or 1e-05 and above"):
        SamplingParams(temperature=temperature)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": True}, "seed is True"),
        ({"seed": np.float64(3)}, "seed is "),
        ({"max_tokens": 1.0}, "max_tokens is 1.0"),
        ({"presence_penalty": -(10**400)}, "presence_penalty is -1000"),
        ({"stop": 5}, "stop is 5; allowed: a list of texts"),
        ({"stop": [5]}, "stop has 5"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; allowed: a list of token ids"),
        ({"bad_words": 5}, "bad_words is 5; allowed: a list of texts or token sequences"),
        ({"bad_words": [5]}, "bad_words is 5; allowed: a list of token ids"),
        ({"bad_words": [[]]}, "bad_words has an empty entry"),
        ({"logit_bias": 5}, "logit_bias is 5; allowed: {token id: number}"),
        ({"logit_bias": [5]}, "logit_bias is .5.; allowed: {token id: number}"),
        ({"logits_processors": 5}, "logits_processors is 5; allowed: a list of callables"),
    ],
)
def test_other_sampling_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**options)


# --- prompts


def test_token_ids_may_be_numpys():
    assert prompt_ids([np.int64(3), 4], None, 10) == [3, 4]
    assert split_prompts([np.int64(3), 4]) == [[3, 4]]
    assert split_prompts([[np.int64(3)], "text"]) == [[3], "text"]


@pytest.mark.parametrize("prompt", [[None], [True], [1, None], [1.0], [1, "text"], [1, {"role": "user"}]])
def test_a_list_of_something_else_is_refused(prompt):
    (one,) = split_prompts([prompt])
    with pytest.raises(ConfigError, match=r"a prompt has .* in it; allowed: text, or a list of token ids"):
        prompt_ids(one, None, 10)


@pytest.mark.parametrize("prompts", [[None], [True], [1, None], ["text", None]])
def test_a_list_with_something_else_is_one_wrong_prompt(prompts):
    (one,) = split_prompts(prompts)
    with pytest.raises(ConfigError, match=r"a prompt has .* in it"):
        prompt_ids(one, None, 10)


@pytest.mark.parametrize("prompt", [None, 5, {"role": "user"}])
def test_what_is_no_prompt_is_named(prompt):
    with pytest.raises(ConfigError, match=f"a prompt is {type(prompt).__name__}; allowed"):
        prompt_ids(prompt, None, 10)


# --- runtimes


@pytest.mark.parametrize("options", [{"runtime": "native"}, {"dtype": "int8"}])
def test_the_native_runtime_is_for_the_cpu(options):
    with pytest.raises(ConfigError, match="the native runtime computes on the CPU, not on cuda"):
        choose_runtime(**options, device="cuda")


def test_top_k_beyond_the_vocabulary_keeps_all_of_it():
    draws = [Draw(0, Warp(1.0, top_k=k), key=0) for k in (0, 7, 3_000_000_000)]
    assert _draw_columns(draws, 100)[2].tolist() == [0, 7, 100]


@pytest.mark.parametrize("prompts", [b"abc", [b"abc"], bytearray(b"abc"), [memoryview(b"abc")], [[1], b"abc"]])
def test_bytes_are_no_token_ids(prompts):
    llm = toy_llm(ToyDecoder(vocab_size=200), byte_tokenizer())
    with pytest.raises(ConfigError, match="a prompt is (bytes|bytearray|memoryview); allowed: text, token ids"):
        llm.generate(prompts, SamplingParams(max_tokens=2))


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "8", True, None])
def test_a_batch_size_is_a_whole_number(batch_size):
    with pytest.raises(ConfigError, match="batch_size is .*; allowed: a whole number, 1 or above"):
        LLM(batch_size=batch_size)


def test_two_drafters_are_one_too_many():
    with pytest.raises(ConfigError, match="drafter and speculative_config both name a drafter"):
        LLM(None, "ngram", speculative_config={"method": "suffix"})


@pytest.mark.parametrize("model", [5, 1.0, ["a"], b"model"])
def test_a_model_is_named_by_a_text(model):
    with pytest.raises(ConfigError, match="model is .*; allowed: a folder, a .gguf file, a hub id, or a LoadedModel"):
        LLM(model)


def test_a_number_of_the_wrong_kind_is_told_so():
    with pytest.raises(ConfigError, match=r"max_tokens is 3\.0; allowed: 0 or above, a whole number"):
        SamplingParams(max_tokens=3.0)
    with pytest.raises(ConfigError, match="temperature is .*, a Python int or float"):
        SamplingParams(temperature=np.float32(0.5))


@pytest.mark.parametrize("method", ["ngram=", "eagle3=", "suffix,draft_model=", "auto="])
def test_an_equals_sign_without_a_path_is_refused(method):
    with pytest.raises(ConfigError, match="names no path"):
        DraftConfig(method=method)


def test_an_option_of_a_type_that_cannot_be_checked_is_named():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Options(DrafterOptions):
        words: list = option(None, "words")

    with pytest.raises(ConfigError, match=r"option words is of type .*list.*; allowed: int, float, bool or str"):
        Options()
