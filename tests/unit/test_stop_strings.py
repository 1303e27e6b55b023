"""Stop strings: found on text, across tokens, steps and characters; and streams, which never show what is not certain."""

import asyncio
import threading

import pytest
import tokenizers

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.engine.answer_text import AnswerText
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams
from tests.support.option_oracle import plain_answer
from tests.support.scripted_drafters import ScriptedDrafter, always_right, bursts, right_until
from tests.support.settled import settled
from tests.support.toy_llm import ScriptDecoder, byte_tokenizer, toy_llm

TOKENIZER = byte_tokenizer("hello", " world", " ha", "END", "ab")
TEXT = "hello world ha ha ha, A 世世ab é 👩‍🚀!\nEND hello"
PROMPT = [7]
DRAFTS = {"none": None, "k=1": always_right(1), "k=3": always_right(3), "k=16": always_right(16),
          "part": right_until(2, 4), "bursts": bursts(3, 0, 2, 0, 0, 48)}  # fmt: skip


def llm_for(text: str = TEXT, drafts: str = "none", tokenizer=TOKENIZER, **options):
    ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
    decoder = ScriptDecoder(ids, tokenizer.vocab_size)
    script = DRAFTS[drafts]
    drafter = script and ScriptedDrafter(drafts, script, {tuple(PROMPT): ids * 3}, decoder.spec.vocab_size)
    return toy_llm(decoder, tokenizer, drafter, **options)


def plain(params: SamplingParams, text: str = TEXT):
    ids = [*TOKENIZER.encode(text), TOKENIZER.eos_token_id]
    decoder = ScriptDecoder(ids, TOKENIZER.vocab_size)
    return plain_answer(decoder, PROMPT, params, eos=(TOKENIZER.eos_token_id,), decode=TOKENIZER.decode)


def check(llm, params: SamplingParams, text: str = TEXT):
    (result,) = llm.generate([PROMPT], params)
    expected = plain(params, text)
    assert (result.text, result.token_ids) == (expected.text, expected.token_ids)
    assert result.finish_reason == expected.finish_reason
    assert result.stats.new_tokens == len(result.token_ids)
    pieces = list(llm.stream(PROMPT, params))
    assert "".join(p.text for p in pieces) == result.text
    assert [t for p in pieces for t in p.token_ids] == result.token_ids
    assert pieces[-1].result is not None
    assert pieces[-1].result.text == result.text
    return result


@pytest.mark.parametrize("drafts", DRAFTS)
def test_every_piece_of_the_text_as_a_stop_string(drafts):
    """The answer ends with the token that completes it, whatever came with it; the text ends before it."""
    llm = llm_for(drafts=drafts)
    for start in range(0, len(TEXT), 4):
        for length in (1, 2, 5, 11):
            stop = TEXT[start : start + length]
            result = check(llm, SamplingParams(max_tokens=80, stop=stop))
            assert result.finish_reason == "stop"
            assert result.stop_string == stop
            assert result.text == TEXT[: TEXT.index(stop)]


@pytest.mark.parametrize("drafts", DRAFTS)
def test_several_stop_strings_and_those_that_never_come(drafts):
    llm = llm_for(drafts=drafts)
    for stop in (("zz", "hello w"), ("world!", "世ab", "b é"), ("ha ha ha ha", "a, B"), ("END hello?", "\n\n")):
        check(llm, SamplingParams(max_tokens=80, stop=stop))
    assert check(llm, SamplingParams(max_tokens=80, stop=("zz",))).stop_string is None


@pytest.mark.parametrize("drafts", ["none", "k=16", "part"])
def test_a_repetitive_text_is_cut_at_the_first_place(drafts):
    """[R20]: ids, log-probabilities and text all end there."""
    text = "x" + " ha" * 12
    (result,) = llm_for(text, drafts).generate([PROMPT], SamplingParams(max_tokens=80, stop=" ha ha ha", logprobs=2))
    assert result.text == "x"
    assert TOKENIZER.decode(result.token_ids) == "x ha ha ha"
    assert len(result.logprobs) == len(result.token_ids) == result.stats.new_tokens == 4


@pytest.mark.parametrize("drafts", ["none", "k=3", "k=16"])
@pytest.mark.parametrize("min_tokens", [0, 1, 2, 3, 4, 5])
def test_min_tokens_must_come_before_the_stop(min_tokens, drafts):
    text = "ab,ab,ab,ab"
    params = SamplingParams(max_tokens=80, stop="ab", min_tokens=min_tokens)
    (result,) = llm_for(text, drafts).generate([PROMPT], params)
    assert len(result.token_ids) == {0: 1, 1: 3, 2: 3, 3: 5, 4: 5, 5: 7}[min_tokens]
    assert result.text == "ab,ab,ab,"[: (len(result.token_ids) - 1) // 2 * 3]


def test_a_stop_with_the_last_token_allowed_is_a_stop():
    num = len(TOKENIZER.encode("hello world"))
    (result,) = llm_for().generate([PROMPT], SamplingParams(max_tokens=num, stop="world"))
    assert (result.finish_reason, result.text) == ("stop", "hello ")
    (result,) = llm_for().generate([PROMPT], SamplingParams(max_tokens=num - 1, stop="world"))
    assert (result.finish_reason, result.text) == ("length", "hello")


@pytest.mark.parametrize("drafts", DRAFTS)
def test_streams_never_split_a_character_nor_show_a_stop_string(drafts, monkeypatch):
    """[R48]: one byte a token, borders of steps anywhere."""
    text = "A 世世ab é👩‍🚀 世 stop here"
    llm = llm_for(text, drafts)
    turns, forward = threading.Semaphore(3), llm.engine.parts.target.forward

    def in_turn(*args):
        turns.acquire(timeout=1)  # not far ahead of the reader, who would get it all as one piece
        return forward(*args)

    monkeypatch.setattr(llm.engine.parts.target, "forward", in_turn)
    pieces = []
    for piece in llm.stream(PROMPT, SamplingParams(max_tokens=90, stop="stop here now")):
        pieces.append(piece)
        turns.release()
    shown = ""
    for piece in pieces:
        assert "\ufffd" not in piece.text
        shown += piece.text
        assert text.startswith(shown)
        assert piece is pieces[-1] or not shown.endswith("s"), "this may become the stop string"
    assert shown == text
    assert len(pieces) > 5 or drafts in ("k=16", "bursts")


def test_an_unfinished_character_at_the_end_is_shown_once():
    ids = TOKENIZER.encode("世")
    llm = llm_for("世" * 9)
    for budget in range(1, 8):
        (result,) = llm.generate([PROMPT], SamplingParams(max_tokens=budget))
        pieces = list(llm.stream(PROMPT, SamplingParams(max_tokens=budget)))
        assert "".join(p.text for p in pieces) == result.text == TOKENIZER.decode((ids * 9)[:budget])


def test_byte_fallback_is_found_when_it_is_there():
    """A run of byte tokens is held back from streams until it ends, but a stop string in it is found at once."""
    vocab = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}, "x": 257, "</s>": 258}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    tokenizer = Tokenizer(backend, {}, None, "toy")
    ids = [257, *(b + 1 for b in "é世".encode()), 257]
    for stop, num_tokens, shown in (("é", 3, "x"), ("世", 6, "xé"), ("éx", None, "xé世x")):
        text = AnswerText(tokenizer.stream(), (stop,))
        ends = [text.push(token) for token in ids]
        assert (ends.index(True) + 1 if True in ends else None) == num_tokens
        text = AnswerText(tokenizer.stream(), (stop,))
        for token in ids[: num_tokens or len(ids)]:
            text.push(token)
        assert text.finish() == shown
        assert text.show() == shown
        assert text.show() == ""


def test_stop_strings_leave_the_cache_as_the_tokens_say():
    """[R19]: what was accepted past the stop is in neither cache nor counts."""
    llm = llm_for(drafts="k=16")
    (result,) = llm.generate([PROMPT], SamplingParams(max_tokens=80, stop="rld"))
    cache = llm.engine.parts.target.cache
    (slot,) = cache.regions
    tokens = [token for token, _ in cache.regions[slot][: cache.length(slot)]]
    assert tokens == [*PROMPT, *result.token_ids][:-1]
    assert result.stats.accepted_tokens < len(result.token_ids)


@pytest.mark.parametrize("drafts", ["none", "part"])
def test_async_streams_share_an_engine(drafts):
    llm = llm_for(drafts=drafts, batch_size=3)
    params = [SamplingParams(max_tokens=80, stop=s) for s in ("world", "世世", "zz")]

    async def read(p):
        return [piece async for piece in llm.astream(PROMPT, p)]

    async def read_all():
        return await asyncio.gather(*(read(p) for p in params))

    for pieces, p in zip(asyncio.run(read_all()), params, strict=True):
        assert "".join(piece.text for piece in pieces) == plain(p).text
        assert [t for piece in pieces for t in piece.token_ids] == plain(p).token_ids
        assert [piece.result is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_a_reader_that_goes_away_frees_the_request():
    llm = llm_for()
    for _ in range(5):
        stream = llm.stream(PROMPT, SamplingParams(max_tokens=50))
        next(stream)
        stream.close()
    llm.stream(PROMPT)  # never read: never begun

    async def leave():
        stream = llm.astream(PROMPT, SamplingParams(max_tokens=50))
        async for _ in stream:
            break
        await stream.aclose()
        task = asyncio.create_task(anext(llm.astream(PROMPT, SamplingParams(max_tokens=50))))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave())
    assert not settled(llm).running
    assert not llm.engine.waiting
    assert llm.engine.parts.target.cache.num_open == 0
    assert llm.generate([PROMPT], SamplingParams(max_tokens=80))[0].text == TEXT


def test_a_stream_checks_at_the_call():
    llm = llm_for()
    with pytest.raises(ConfigError, match="prompt is empty"):
        llm.stream("")
    with pytest.raises(ConfigError, match="outside the model's vocabulary"):
        asyncio.run(llm.astream([10**6]).start())
    with pytest.raises(ConfigError, match="stop_token_ids has token 9999"):
        llm.stream(PROMPT, SamplingParams(stop_token_ids=[9999]))


def test_samples_of_a_stream_come_in_turn():
    llm = llm_for()
    pieces = list(llm.stream(PROMPT, SamplingParams(max_tokens=80, n=3, temperature=2.0, seed=4)))
    results = llm.generate([PROMPT], SamplingParams(max_tokens=80, n=3, temperature=2.0, seed=4))
    assert [r.sample_index for r in results] == [0, 1, 2]
    assert [r.seed for r in results] == [4] * 3
    for result in results:
        own = [p for p in pieces if p.sample_index == result.sample_index]
        assert "".join(p.text for p in own) == result.text
        assert own[-1].result is not None
        assert own[-1].result.token_ids == result.token_ids
    order = [p.sample_index for p in pieces]
    assert order.index(2) < len(order) - 1 - order[::-1].index(0), "the last sample waited for the first to end"


def test_results_of_several_samples_are_in_order():
    llm = llm_for(batch_size=2)
    params = [SamplingParams(max_tokens=3, n=2, temperature=3.0, seed=1), SamplingParams(max_tokens=3)]
    results = llm.generate([PROMPT, PROMPT], params)
    assert [(r.sample_index, r.seed == 1) for r in results] == [(0, True), (1, True), (0, False)]
    unseeded = llm.generate([PROMPT], SamplingParams(max_tokens=3, n=2, temperature=3.0))
    assert unseeded[0].seed == unseeded[1].seed


def test_bad_words_as_texts():
    llm = llm_for()
    (result,) = llm.generate([PROMPT], SamplingParams(max_tokens=80, bad_words=["world", "END"]))
    assert "world" not in result.text
    assert "END" not in TOKENIZER.decode(result.token_ids)
