"""The event loop is free whatever the engine does. A pass that "takes long" waits for the test, which runs in the event loop:
were the event loop to wait for the pass, neither would go on, and the gate's patience would end the test."""

import asyncio
import gc
import threading

import pytest

from foreword.engine.async_llm import AsyncLLM
from foreword.errors import ClosedError, ConfigError, PromptTooLongError
from foreword.sampling.grammar import Grammar
from foreword.sampling.params import SamplingParams
from tests.support.gate import GatedDecoder
from tests.support.settled import settled
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import plain_tokens
from tests.support.toy_llm import byte_tokenizer, toy_async_llm, toy_llm

TOKENIZER = byte_tokenizer("hello", " world")
LONG, SHORT = SamplingParams(max_tokens=3000, ignore_eos=True), SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture
def decoder():
    made = GatedDecoder(vocab_size=TOKENIZER.vocab_size)
    yield made
    made.open_gate()


def plain(prompt, params=SHORT):
    return plain_tokens(ToyDecoder(vocab_size=TOKENIZER.vocab_size), prompt, params)


async def read(stream):
    return [piece async for piece in stream]


def token_ids(pieces):
    return [token for piece in pieces for token in piece.token_ids]


@pytest.mark.parametrize("kind", ["AsyncLLM", "LLM.astream"])
def test_begin_and_cancel_leave_the_event_loop_free_in_a_pass(decoder, kind):
    llm = toy_async_llm(decoder, TOKENIZER) if kind == "AsyncLLM" else toy_llm(decoder, TOKENIZER)
    stream_of = llm.stream if kind == "AsyncLLM" else llm.astream

    async def run():
        first = stream_of([1], LONG, request_id="first")
        await anext(first)
        decoder.close_gate()
        await asyncio.to_thread(decoder.wait_for_pass)
        second = await stream_of("hello", SHORT).start()  # tokenized and queued
        third = asyncio.create_task(read(stream_of([3], LONG)))
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)
        await first.aclose()
        assert [piece async for piece in first] == []
        llm.abort("first")
        llm.snapshot()
        assert decoder.is_closed, "something waited for the pass"
        decoder.open_gate()
        return await read(second)

    pieces = asyncio.run(run())
    assert token_ids(pieces) == plain(TOKENIZER.encode("hello"))
    assert pieces[-1].result.token_ids == token_ids(pieces)
    assert settled(llm).running == []


def test_generate_streams_and_cancelled_tasks_share_the_passes(decoder):
    async def run():
        async with toy_async_llm(decoder, TOKENIZER) as llm:
            lost = asyncio.create_task(llm.generate([[9]], LONG))
            calls = [llm.generate([[1], [2]], SHORT), read(llm.stream([3], SHORT)), llm.generate([4], SHORT)]
            tasks = [asyncio.create_task(call) for call in calls]
            while llm.snapshot().num_running < 5 and not all(task.done() for task in tasks):
                await asyncio.sleep(0)
            lost.cancel()
            answers = await asyncio.gather(*tasks)
            with pytest.raises(asyncio.CancelledError):
                await lost
            assert settled(llm).running == []
            assert await llm.encode("hello") == TOKENIZER.encode("hello")
            return answers

    both, pieces, last = asyncio.run(run())
    assert [r.token_ids for r in both] == [plain([1]), plain([2])]
    assert token_ids(pieces) == plain([3])
    assert last[0].token_ids == plain([4])


@pytest.mark.parametrize("slow", ["tokenizer", "grammar"])
def test_slow_preparation_leaves_the_event_loop_free(decoder, slow, monkeypatch):
    llm = toy_async_llm(decoder, TOKENIZER)
    entered, go_on = threading.Event(), threading.Event()

    def slowly(*_args, **_options):
        entered.set()
        assert go_on.wait(60), "the event loop was not free"
        return [1, 2] if slow == "tokenizer" else None

    monkeypatch.setattr(llm._input, "encode" if slow == "tokenizer" else "_matcher", slowly)
    params = SHORT if slow == "tokenizer" else SamplingParams(max_tokens=12, grammar=Grammar.regex("[ab]+"))

    async def run():
        task = asyncio.create_task(llm.generate([1, 2] if slow == "grammar" else "text", params))
        assert await asyncio.to_thread(entered.wait, 60)
        go_on.set()
        (result,) = await task
        assert result.token_ids[:3] == plain([1, 2])[:3]

    asyncio.run(run())


def test_errors_come_before_the_first_piece(decoder):
    llm = toy_async_llm(decoder, TOKENIZER)

    async def run():
        with pytest.raises(ConfigError, match="outside the model's vocabulary"):
            await llm.stream([10**6]).start()
        with pytest.raises(PromptTooLongError):
            await anext(llm.stream([1] * 5000))
        with pytest.raises(ConfigError, match="sampling params are 5"):
            await llm.generate([1], 5)
        with pytest.raises(ConfigError, match="timeout_s"):
            llm.stream([1], timeout_s=-1)

        def broken():
            raise RuntimeError("no pass")

        decoder.on_pass = broken
        with pytest.raises(RuntimeError, match="no pass"):
            await llm.generate([1])
        with pytest.raises(RuntimeError, match="no pass"):
            await read(llm.stream([1]))

    asyncio.run(run())


def test_a_forgotten_stream_ends_its_request_without_an_event_loop(decoder):
    llm = toy_async_llm(decoder, TOKENIZER)

    async def leave():
        stream = llm.stream([1], LONG)
        await anext(stream)
        return stream

    stream = asyncio.run(leave())  # its event loop is closed now
    del stream
    gc.collect()
    assert settled(llm).running == []


def test_an_event_loop_that_is_gone_ends_the_request_that_would_tell_it(decoder):
    llm = toy_async_llm(decoder, TOKENIZER)

    async def leave():
        decoder.close_gate()  # nothing is told before this event loop ends
        return await llm.stream([1], LONG).start()

    stream = asyncio.run(leave())
    decoder.open_gate()

    async def other():
        return await llm.generate([[2]], SHORT)

    assert asyncio.run(other())[0].token_ids == plain([2])
    assert settled(llm).running == []
    del stream


def test_close_is_awaited_and_ends_what_runs(decoder):
    llm: AsyncLLM = toy_async_llm(decoder, TOKENIZER)

    async def run():
        stream = llm.stream([1], LONG)
        await anext(stream)
        decoder.close_gate()
        await asyncio.to_thread(decoder.wait_for_pass)
        closing = asyncio.create_task(llm.close())
        await asyncio.sleep(0)
        assert not closing.done()
        decoder.open_gate()
        await closing
        with pytest.raises(ClosedError):
            await read(stream)
        with pytest.raises(ClosedError):
            await llm.generate([1])

    asyncio.run(run())


def test_deadlines_and_samples(decoder):
    async def run():
        async with toy_async_llm(decoder, TOKENIZER, batch_size=1) as llm:
            results = await llm.generate([[1], [2]], LONG, timeout_s=0.02, request_id=["a", "b"])
            assert [(r.finish_reason, r.request_id) for r in results] == [("timeout", "a"), ("timeout", "b")]
            pieces = await read(llm.stream([1], SamplingParams(max_tokens=3, n=3, ignore_eos=True)))
            ends = [piece.result for piece in pieces if piece.result]
            assert sorted(result.sample_index for result in ends) == [0, 1, 2]

    asyncio.run(run())


def test_a_stream_that_two_tasks_start_is_asked_once(decoder):
    llm = toy_async_llm(decoder, TOKENIZER)

    async def run():
        stream = llm.stream([1], SHORT)
        await asyncio.gather(stream.start(), stream.start())
        return await read(stream)

    assert token_ids(asyncio.run(run())) == plain([1])
    assert llm.snapshot().finished == {"length": 1}


@pytest.mark.parametrize("how", ["ends", "fails", "is closed"])
def test_a_reader_that_rests_is_woken_by_the_end(decoder, how):
    llm = toy_async_llm(decoder, TOKENIZER)

    async def run():
        stream = llm.stream([1], SHORT)
        first = await anext(stream)  # of one token or of several, as the threads are scheduled
        if how == "fails":
            decoder.on_pass = lambda: 1 / 0
        if how == "is closed":
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(stream.aclose()))
        await asyncio.wait_for(stream.rest(600), 60)
        if how == "ends":
            piece = await anext(stream)
            assert piece.result is not None
            assert first.token_ids + piece.token_ids == piece.result.token_ids
        with pytest.raises(ZeroDivisionError if how == "fails" else StopAsyncIteration):
            await anext(stream)
        await llm.close()

    asyncio.run(run())


def test_a_reader_that_rests_gets_what_came_meanwhile_as_one_piece(decoder):
    llm = toy_async_llm(decoder, TOKENIZER)

    async def run():
        stream = llm.stream([1], LONG)
        await anext(stream)
        await stream.rest(0.05)
        piece = await anext(stream)
        assert piece.result is None
        assert len(piece.token_ids) > 1
        await llm.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_running", [True, False])
def test_closing_a_stream_wakes_the_task_that_reads_it(decoder, is_running):
    llm = toy_async_llm(decoder, TOKENIZER, batch_size=1)

    async def run():
        blocker = llm.stream([2], LONG)
        stream = llm.stream([1], LONG)
        if is_running:
            await anext(stream)
        else:
            await anext(blocker)
            await stream.start()
        decoder.close_gate()
        reader = asyncio.create_task(read(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        await stream.aclose()
        await asyncio.wait_for(reader, 30)
        decoder.open_gate()
        await blocker.aclose()

    asyncio.run(run())
    assert not settled(llm).running


def test_a_stream_that_is_closed_while_it_starts_asks_nothing(decoder):
    llm = toy_async_llm(decoder, TOKENIZER, batch_size=1)
    may_prepare = threading.Event()
    encode = llm._input.encode
    llm._input.encode = lambda prompt: (may_prepare.wait(30), encode(prompt))[1]

    async def run():
        stream = llm.stream([1], LONG, request_id="mine")
        starting = asyncio.create_task(stream.start())
        await asyncio.sleep(0.01)
        await stream.aclose()
        may_prepare.set()
        await starting
        assert await read(stream) == []
        return await read(llm.stream([3], SHORT, request_id="mine"))

    assert token_ids(asyncio.run(run())) == plain([3])
    assert llm.snapshot().finished == {"length": 1}
