"""What each option does to one row of logits, and which values are refused."""

import math
from dataclasses import replace

import pytest
import torch

from foreword.errors import ConfigError
from foreword.sampling.grammar import Grammar
from foreword.sampling.params import SamplingParams
from foreword.sampling.processors import TransformersProcessor, make_logits_processor

NEVER = -math.inf
ROW = torch.tensor([3.0, -1.0, 2.0, 0.5, -2.0])


def shaped(token_ids, prompt_len=1, ends=(), **options):
    processor = make_logits_processor(SamplingParams(**options), frozenset(ends))
    assert processor is not None
    before = ROW.clone()
    result = processor(ROW, token_ids, prompt_len)
    assert torch.equal(ROW, before), "the argument was changed"
    assert torch.equal(processor(ROW, token_ids, prompt_len), result), "not a function of its arguments"
    return result.tolist()


def test_defaults_need_no_logits_processor():
    """Plain requests keep the fused draw."""
    assert make_logits_processor(SamplingParams(), frozenset({1})) is None
    assert (
        make_logits_processor(SamplingParams(temperature=1, top_p=0.5, min_tokens=3, stop=("a",), logprobs=2)) is None
    )
    assert make_logits_processor(SamplingParams(min_tokens=3), frozenset({1})) is not None


def test_bias_and_allowed_tokens():
    assert shaped([0], logit_bias={1: 2.5, 4: -1}) == [3.0, 1.5, 2.0, 0.5, -3.0]
    assert shaped([0], allowed_token_ids=[1, 3]) == [NEVER, -1.0, NEVER, 0.5, NEVER]
    assert shaped([0], allowed_token_ids=[1, 3], logit_bias={1: 1}) == [NEVER, 0.0, NEVER, 0.5, NEVER]


def test_bad_words_ban_the_token_that_would_complete_them():
    words = [(2,), (0, 1), (3, 0, 3)]
    assert shaped([4], bad_words=words) == [3.0, -1.0, NEVER, 0.5, -2.0]
    assert shaped([4, 0], bad_words=words) == [3.0, NEVER, NEVER, 0.5, -2.0]
    assert shaped([3, 0], bad_words=words) == [3.0, NEVER, NEVER, NEVER, -2.0]  # a word may begin in the prompt
    assert shaped([0], bad_words=[(3, 0, 3)]) == ROW.tolist()


def test_penalties():
    """Repetition counts prompt and answer and is one factor a token; the others count the answer."""
    # tokens: prompt 1, answer 0 0 2
    assert shaped([1, 0, 0, 2], repetition_penalty=2.0) == [1.5, -2.0, 1.0, 0.5, -2.0]
    assert shaped([1, 0, 0, 2], presence_penalty=0.5) == [2.5, -1.0, 1.5, 0.5, -2.0]
    assert shaped([1, 0, 0, 2], frequency_penalty=0.5) == [2.0, -1.0, 1.5, 0.5, -2.0]
    assert shaped([1, 0, 0, 2], frequency_penalty=0.5, presence_penalty=1.0, repetition_penalty=2.0) == [
        -0.5, -2.0, -0.5, 0.5, -2.0,
    ]  # fmt: skip


def test_frequency_is_worked_out_from_the_count():
    """3 - 0.4 * 7 in one step; seven subtractions of 0.4 in float32 give another number."""
    count = torch.tensor(7.0)
    expected = torch.tensor(3.0) - 0.4 * count
    stepwise = torch.tensor(3.0)
    for _ in range(7):
        stepwise = stepwise - 0.4
    assert float(stepwise) != float(expected)
    assert shaped([1] + [0] * 7, frequency_penalty=0.4)[0] == float(expected)


def test_min_tokens_bans_the_ends_until_enough():
    assert shaped([1, 0], ends=(2, 3), min_tokens=2) == [3.0, -1.0, NEVER, NEVER, -2.0]
    assert shaped([1, 0, 0], ends=(2, 3), min_tokens=2) == ROW.tolist()
    # where nothing else is allowed, the end stays
    assert shaped([1], ends=(2,), min_tokens=2, allowed_token_ids=[2]) == [NEVER, NEVER, 2.0, NEVER, NEVER]


def test_nothing_is_done_past_an_end():
    def fail(token_ids, logits):
        raise AssertionError("called past the end")

    assert shaped([1, 0, 2], ends=(2,), logits_processors=[fail]) == ROW.tolist()
    with pytest.raises(AssertionError, match="past the end"):
        shaped([2, 0], ends=(2,), logits_processors=[fail])  # an end token in the prompt ends nothing


def test_processors_come_last_in_their_order_and_see_the_whole_path():
    calls = []

    def first(token_ids, logits):
        calls.append((list(token_ids), logits.tolist()))
        logits += 1.0
        return logits

    def second(token_ids, logits):
        return logits * 2.0

    assert shaped([1, 0], presence_penalty=1.0, logits_processors=[first, second]) == [6.0, 0.0, 6.0, 3.0, -2.0]
    assert calls[0] == ([1, 0], [2.0, -1.0, 2.0, 0.5, -2.0])


def test_what_is_ruled_out_stays_out():
    def flat(token_ids, logits):
        return torch.zeros_like(logits)

    assert shaped([1], allowed_token_ids=[0, 4], logits_processors=[flat]) == [0.0, NEVER, NEVER, NEVER, 0.0]


def test_a_processor_of_transformers_fits():
    transformers = pytest.importorskip("transformers")
    theirs = TransformersProcessor(transformers.RepetitionPenaltyLogitsProcessor(penalty=1.7))
    ours = shaped([1, 0, 0, 2], repetition_penalty=1.7)
    assert shaped([1, 0, 0, 2], logits_processors=[theirs]) == ours


def test_options_that_leave_nothing_say_so():
    processor = make_logits_processor(SamplingParams(allowed_token_ids=[1], bad_words=[(1,)]))
    assert processor is not None
    with pytest.raises(ConfigError, match="no token is allowed after 2 tokens"):
        processor(ROW, [0, 1, 2], 1)
    nan = make_logits_processor(SamplingParams(logits_processors=[lambda token_ids, logits: logits * math.nan]))
    assert nan is not None
    with pytest.raises(ConfigError, match="the highest logit is nan"):
        nan(ROW, [0], 1)
    # a drafter's row, which lacks tokens of the target, is no one's mistake
    partial = torch.tensor([1.0, NEVER, NEVER, NEVER, NEVER])
    assert float(processor(partial, [0], 1).max()) == NEVER


@pytest.mark.parametrize("result", [None, torch.zeros(2)])
def test_a_processor_that_returns_something_else_is_named(result):
    processor = make_logits_processor(SamplingParams(logits_processors=[lambda token_ids, logits: result]))
    assert processor is not None
    with pytest.raises(ConfigError, match="a logits processor returned"):
        processor(ROW, [0], 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty is 0; allowed: above 0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
        ({"presence_penalty": "x"}, "presence_penalty is 'x'"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"logit_bias": {-1: 2}}, "a token id of logit_bias is -1"),
        ({"logit_bias": {3: -math.inf}}, "logit_bias of token 3 is -inf"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": 5}, "allowed_token_ids is 5; allowed: a list"),
        ({"bad_words": [()]}, "bad_words has an empty entry"),
        ({"bad_words": [("a",)]}, "a token id of bad_words is 'a'"),
        ({"stop": [""]}, "stop has ''"),
        ({"stop": [3]}, "stop has 3"),
        ({"stop_token_ids": ["a"]}, "a token id of stop_token_ids is 'a'"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9, more than max_tokens, 8"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"n": 0}, "n is 0; allowed: from 1 to 128"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"prompt_logprobs": True}, "prompt_logprobs is True"),
        ({"logits_processors": [3]}, "logits_processors has 3"),
        ({"grammar": "a*"}, "grammar is 'a\\*'; make one by"),
        ({"grammar": Grammar.regex("a"), "ignore_eos": True}, "ignore_eos continues after the end"),
    ],
)
def test_wrong_values_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**options)


def test_values_are_kept_in_one_form():
    params = SamplingParams(stop="ab", logit_bias={5: 1, 2: -1}, bad_words=["a", [1, 2]], allowed_token_ids=range(3))
    assert params.stop == ("ab",)
    assert params.logit_bias == ((2, -1.0), (5, 1.0))
    assert params.bad_words == ("a", (1, 2))
    assert params.allowed_token_ids == (0, 1, 2)
    assert len({params, replace(params)}) == 1


def test_bad_words_as_texts_are_banned_at_the_start_and_after_a_space():
    params = SamplingParams(bad_words=["no", (7,)]).with_bad_word_ids(lambda text: [ord(c) for c in text])
    assert params.bad_words == ((110, 111), (32, 110, 111), (7,))
    with pytest.raises(ConfigError, match="bad_words has texts"):
        make_logits_processor(SamplingParams(bad_words=["no"]))


@pytest.mark.parametrize(
    "options", [{"logit_bias": {9: 1}}, {"allowed_token_ids": [9]}, {"bad_words": [(1, 9)]}, {"stop_token_ids": [9]}]
)
def test_ids_outside_the_vocabulary_are_refused(options):
    SamplingParams(**options).check_vocabulary(10)
    with pytest.raises(ConfigError, match="has token 9, outside the vocabulary; allowed: 0 to 8"):
        SamplingParams(**options).check_vocabulary(9)
