"""A conversation that goes on reads only what is new, and says what it would have said anyway."""

import random

import pytest

from foreword.draft.base import BaseDrafter, DraftNeed
from foreword.sampling.params import SamplingParams
from tests.support.scripted_drafters import ScriptedDrafter
from tests.support.settled import settled
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import plain_tokens
from tests.support.toy_llm import byte_tokenizer, toy_llm

TOKENIZER = byte_tokenizer("hello")
DECODER = ToyDecoder(vocab_size=TOKENIZER.vocab_size)
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def rows(llm, slot: int) -> list[int]:
    cache = llm.engine.parts.target.cache
    return [token for token, _ in cache.regions[slot][: cache.length(slot)]]


@pytest.mark.parametrize("drafter", ["none", "ngram"])
@pytest.mark.parametrize("draws", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "sampled"])
def test_turns_are_those_of_a_fresh_model(drafter, draws):
    params = SamplingParams(max_tokens=12, ignore_eos=True, **draws)
    llm, prompt = toy_llm(DECODER, TOKENIZER, drafter), [1, 2, 3]
    for turn in range(5):
        (result,) = llm.generate([prompt], params)
        assert result.token_ids == plain_tokens(DECODER, prompt, params)
        assert result.stats.cached_tokens == (len(prompt) - 3 if turn else 0)
        (slot,) = llm.engine.parts.target.cache.regions
        assert rows(llm, slot) == [*prompt, *result.token_ids][:-1]
        prompt = [*prompt, *result.token_ids, 7, 8]


def test_what_was_cut_off_by_a_stop_is_not_continued():
    """[R19]: a burst that runs past the stop; the next turn takes another way there."""
    prompt = [1, 2, 3]
    free = plain_tokens(DECODER, prompt, PARAMS)
    burst = ScriptedDrafter("burst", lambda answer, step, vocab: answer[:16], {tuple(prompt): free * 2}, 0)
    burst.vocab_size = DECODER.spec.vocab_size
    llm = toy_llm(DECODER, TOKENIZER, burst)
    (first,) = llm.generate([prompt], SamplingParams(max_tokens=12, stop_token_ids=(free[4],)))
    assert first.token_ids == free[:5]
    (slot,) = llm.engine.parts.target.cache.regions
    assert rows(llm, slot) == [*prompt, *free[:4]]
    turn = [*prompt, *free[:5], *free[7:9]]
    burst.answers[tuple(turn)] = plain_tokens(DECODER, turn, PARAMS)
    (second,) = llm.generate([turn], PARAMS)
    assert second.stats.cached_tokens == 7
    assert second.token_ids == plain_tokens(DECODER, turn, PARAMS)


def test_an_answer_that_reads_otherwise_is_cut_back():
    """A chat template may write the answer in other tokens: only what is the same is kept."""
    llm, prompt = toy_llm(DECODER, TOKENIZER), [1, 2, 3]
    (first,) = llm.generate([prompt], PARAMS)
    changed = [*prompt, *first.token_ids[:5], (first.token_ids[5] + 1) % 200, *first.token_ids[6:], 9]
    (second,) = llm.generate([changed], PARAMS)
    assert second.stats.cached_tokens == 8
    assert second.token_ids == plain_tokens(DECODER, changed, PARAMS)


def test_a_short_beginning_is_read_anew():
    llm, prompt = toy_llm(DECODER, TOKENIZER), [1, 2, 3, 4]
    for other in (prompt, prompt, [1, 2, 3], [1, 2, 3, 9, 9], [9, 1, 2, 3, 4]):
        (result,) = llm.generate([other], PARAMS)
        assert result.stats.cached_tokens == 0
        assert result.token_ids == plain_tokens(DECODER, other, PARAMS)


def test_a_prompt_that_is_all_there_still_reads_its_last_token():
    llm, prompt = toy_llm(DECODER, TOKENIZER), [1, 2, 3]
    (first,) = llm.generate([prompt], PARAMS)
    shorter = [*prompt, *first.token_ids[:6]]
    (second,) = llm.generate([shorter], PARAMS)
    assert second.stats.cached_tokens == len(shorter) - 1
    assert second.token_ids == plain_tokens(DECODER, shorter, PARAMS)


def test_random_conversations_side_by_side():
    rng = random.Random(3)
    llm = toy_llm(DECODER, TOKENIZER, "ngram", batch_size=3)
    chats = [[i + 1] for i in range(4)]
    num_cached = 0
    for _ in range(6):
        asked = rng.sample(range(4), rng.randint(1, 4))
        results = llm.generate([chats[i] for i in asked], PARAMS)
        for i, result in zip(asked, results, strict=True):
            assert result.token_ids == plain_tokens(DECODER, chats[i], PARAMS)
            num_cached += result.stats.cached_tokens
            keep = rng.randint(0, len(result.token_ids))
            chats[i] = [*chats[i], *result.token_ids[:keep], rng.randint(0, 9)]
    assert num_cached > 50


def test_prompts_that_must_be_seen_whole_are_read_whole():
    llm, prompt = toy_llm(DECODER, TOKENIZER), [1, 2, 3]
    (first,) = llm.generate([prompt], PARAMS)
    turn = [*prompt, *first.token_ids, 5]
    (second,) = llm.generate([turn], SamplingParams(max_tokens=4, prompt_logprobs=0))
    assert second.stats.cached_tokens == 0
    assert len(second.prompt_logprobs) == len(turn)


class Learner(BaseDrafter):
    need = DraftNeed(hidden=True)


def test_a_drafter_that_learns_from_hidden_states_sees_every_position():
    llm = toy_llm(DECODER, TOKENIZER, Learner())
    (first,) = llm.generate([[1, 2, 3]], PARAMS)
    assert llm.engine.parts.target.cache.num_open == 0
    assert llm.generate([[1, 2, 3, *first.token_ids, 5]], PARAMS)[0].stats.cached_tokens == 0


def test_an_engine_keeps_none_unless_told():
    llm = toy_llm(DECODER, TOKENIZER, prefix_cache=False)
    prompt = list(range(40))
    for _ in range(2):
        assert llm.generate([prompt], PARAMS)[0].stats.cached_tokens == 0
        assert settled(llm).parts.target.cache.num_open == 0
