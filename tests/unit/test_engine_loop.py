"""The engine's own thread: notes between passes, readers that go away, ids, deadlines, the queue, the end."""

import asyncio
import dataclasses
import gc
import json
import threading
import time
import weakref

import pytest

from foreword.engine.async_llm import AsyncLLM
from foreword.engine.fixed_policy import prefill_shares
from foreword.engine.input_processor import PreparedPrompt
from foreword.engine.llm import LLM
from foreword.errors import ClosedError, ConfigError, ForewordError, QueueFullError
from foreword.sampling.params import SamplingParams
from tests.support.gate import GatedDecoder
from tests.support.settled import settled
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import plain_tokens
from tests.support.toy_llm import byte_tokenizer, toy_llm

TOKENIZER = byte_tokenizer("hello", " world")
LONG, SHORT = SamplingParams(max_tokens=3000, ignore_eos=True), SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture
def decoder():
    made = GatedDecoder(vocab_size=TOKENIZER.vocab_size)
    yield made
    made.open_gate()


def plain(prompt, params=SHORT):
    return plain_tokens(ToyDecoder(vocab_size=TOKENIZER.vocab_size), prompt, params)


def in_thread(call):
    """A thread that has begun it, and where its result or error will be."""
    found = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def ended(thread, found):
    thread.join(60)
    assert not thread.is_alive()
    return found[0]


def wait_until(is_so):
    for _ in range(60_000):
        if is_so():
            return
        time.sleep(1e-3)
    raise AssertionError("it never came to that")


class Cycle:
    """Holds a stream, and itself: only the garbage collector frees it."""

    def __init__(self, stream) -> None:
        self.stream, self.me = stream, self
        next(stream)


# --- readers that go away


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_stream_that_is_collected_in_the_middle_of_a_pass_ends_nothing_else(decoder, drafter):
    llm = toy_llm(decoder, TOKENIZER, drafter)
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # the collector looks at what comes from here on, and is quick
    try:
        for turn in range(3):
            left = weakref.ref(Cycle(llm.stream([turn, 7], LONG)))
            decoder.on_pass = gc.collect  # in the loop's thread, in every pass
            results = llm.generate([[1, 2, 3], [4, 5]], SHORT)
            decoder.on_pass = lambda: None
            assert left() is None, "the collector did not come by"
            assert [r.token_ids for r in results] == [plain([1, 2, 3]), plain([4, 5])]
            assert settled(llm).running == []
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def test_a_stream_that_is_collected_in_another_thread_while_a_pass_runs_ends_nothing_else(decoder):
    llm = toy_llm(decoder, TOKENIZER)
    left = weakref.ref(Cycle(llm.stream([7], LONG)))
    thread, found = in_thread(lambda: llm.generate([[1, 2, 3]], SHORT))
    decoder.close_gate()
    decoder.wait_for_pass()
    gc.collect()  # while that pass stands at the gate
    assert left() is None
    decoder.open_gate()
    (result,) = ended(thread, found)
    assert result.token_ids == plain([1, 2, 3])
    assert settled(llm).running == []


@pytest.mark.parametrize("way", ["break", "close", "forget", "iterate", "as_completed"])
def test_a_reader_that_goes_away_does_not_wait_for_the_pass(decoder, way):
    llm = toy_llm(decoder, TOKENIZER)
    if way in ("iterate", "as_completed"):
        reader = getattr(llm, way)([[1], [2]], [SHORT, LONG])
    else:
        reader = llm.stream([1], LONG)
    next(reader)
    decoder.close_gate()
    decoder.wait_for_pass()
    if way == "break":
        for _ in reader:
            break
    elif way == "forget":
        del reader
    else:
        reader.close()
    assert decoder.is_closed, "it waited for the pass"
    reader = None
    decoder.open_gate()
    assert settled(llm).running == []
    assert llm.snapshot().finished["abort"] == 1


def test_a_slow_reader_gets_one_large_piece(decoder):
    llm = toy_llm(decoder, TOKENIZER)
    stream = llm.stream([1], SHORT)
    first = next(stream)
    llm.generate([[2]], SamplingParams(max_tokens=40, ignore_eos=True))  # meanwhile the other ends
    pieces = list(stream)
    assert len(pieces) <= 2, "one that was there already, one with all that came since"
    assert first.token_ids + [t for piece in pieces for t in piece.token_ids] == plain([1])
    assert first.text + "".join(piece.text for piece in pieces) == pieces[-1].result.text


def test_who_asks_from_the_engines_own_thread_is_told(decoder):
    llm, errors = toy_llm(decoder, TOKENIZER), []

    def ask():
        with pytest.raises(ForewordError, match="from its own thread") as caught:
            llm.generate([[2]], SHORT)
        errors.append(caught.value)

    decoder.on_pass = ask
    assert llm.generate([[1]], SHORT)[0].token_ids == plain([1])
    assert errors


# --- ids


def test_ids_are_the_callers_or_made(decoder):
    llm = toy_llm(decoder, TOKENIZER)
    two = SamplingParams(max_tokens=2, n=2)
    results = llm.generate([[1], [2]], two, request_id=["mine", 7])
    assert [(r.request_id, r.sample_index) for r in results] == [("mine", 0), ("mine", 1), (7, 0), (7, 1)]
    assert {p.request_id for p in llm.stream([1], SHORT, request_id="mine")} == {"mine"}
    made = [r.request_id for r in llm.generate([[1], [2], [1]], SHORT)]
    assert len(set(made)) == 3
    for wrong, message in [
        ("a", "1 request ids for 2 prompts"),
        (["a", "a"], "twice"),
        ([1.5, 2], r"request_id is \[1.5, 2\]; allowed"),
        (object(), "allowed: a text, a whole number"),
        ([True, 2], "allowed: a text"),
    ]:
        with pytest.raises(ConfigError, match=message):
            llm.generate([[1], [2]], SHORT, request_id=wrong)


def test_an_abort_gives_its_caller_what_there_is(decoder):
    llm = toy_llm(decoder, TOKENIZER)
    seen = threading.Event()
    decoder.on_pass = lambda: seen.set() if decoder.num_passes > 5 else None
    thread, found = in_thread(lambda: llm.generate([1], LONG, request_id="long"))
    assert seen.wait(60)
    with pytest.raises(ConfigError, match="'long' is in use"):
        llm.generate([[2]], SHORT, request_id="long")
    llm.abort("unknown")
    llm.abort("long")
    (result,) = ended(thread, found)
    assert (result.finish_reason, result.request_id) == ("abort", "long")
    assert 0 < len(result.token_ids) < 3000
    assert result.token_ids == plain([1], LONG)[: len(result.token_ids)]
    assert llm.generate([[2]], SHORT, request_id="long")[0].token_ids == plain([2])


def test_an_abort_ends_what_waits_and_leaves_the_other_prompts_of_the_call(decoder):
    llm = toy_llm(decoder, TOKENIZER, batch_size=1)
    decoder.close_gate()
    params = SamplingParams(max_tokens=12, ignore_eos=True, n=2)
    thread, found = in_thread(lambda: llm.generate([[1], [2], [3]], params, request_id=["a", "b", "c"]))
    decoder.wait_for_pass()
    llm.abort("b")
    decoder.open_gate()
    results = ended(thread, found)
    assert [r.finish_reason for r in results] == ["length"] * 2 + ["abort"] * 2 + ["length"] * 2
    assert [len(r.token_ids) for r in results] == [12, 12, 0, 0, 12, 12]


# --- deadlines and the queue


def test_a_deadline_ends_what_runs_and_what_waits(decoder):
    llm = toy_llm(decoder, TOKENIZER, batch_size=1)
    stream = llm.stream([1], LONG, timeout_s=30)
    next(stream)
    decoder.close_gate()
    decoder.wait_for_pass()
    in_time = in_thread(lambda: llm.generate([5], SHORT))
    late = in_thread(lambda: llm.generate([[2], [3]], LONG, timeout_s=1e-3))
    wait_until(lambda: llm.snapshot().num_waiting >= 3)
    time.sleep(2e-3)
    decoder.open_gate()
    assert [(r.finish_reason, r.token_ids) for r in ended(*late)] == [("timeout", [])] * 2
    llm.abort(next(stream).request_id)
    assert list(stream)[-1].result.finish_reason == "abort"
    assert ended(*in_time)[0].token_ids == plain([5])
    running = llm.generate([1], LONG, timeout_s=0.05)[0]
    assert running.finish_reason == "timeout"
    assert running.token_ids == plain([1], LONG)[: len(running.token_ids)]
    assert llm.snapshot().finished == {"timeout": 3, "abort": 1, "length": 1}
    for wrong in (0, -1, float("nan"), float("inf"), True, "2"):
        with pytest.raises(ConfigError, match="timeout_s is .*; allowed: a number of seconds above 0"):
            llm.stream([1], LONG, timeout_s=wrong)


def test_a_full_queue_refuses_and_takes_again(decoder):
    llm = toy_llm(decoder, TOKENIZER, batch_size=1, max_queue=2)
    decoder.close_gate()
    running = in_thread(lambda: llm.generate([1], SHORT))
    decoder.wait_for_pass()
    waiting = [in_thread(lambda: llm.generate([[2], [3]], SHORT)) for _ in range(2)]
    wait_until(lambda: llm.snapshot().num_waiting >= 4)
    with pytest.raises(QueueFullError, match="2 calls wait already, and max_queue is 2") as caught:
        llm.generate([4], SHORT)
    assert (caught.value.num_waiting, caught.value.max_queue) == (2, 2)
    with pytest.raises(QueueFullError):
        asyncio.run(llm.astream([4], SHORT).start())
    decoder.open_gate()
    assert ended(*running)[0].token_ids == plain([1])
    assert [[r.token_ids for r in ended(*call)] for call in waiting] == [[plain([2]), plain([3])]] * 2
    assert llm.generate([4], SHORT)[0].token_ids == plain([4])
    assert llm.generate([], SHORT) == []
    assert llm.snapshot().num_waiting == 0


def test_samples_are_made_as_there_is_room(decoder):
    llm = toy_llm(decoder, TOKENIZER, batch_size=2)
    decoder.close_gate()
    thread, found = in_thread(lambda: llm.generate([[1]] * 50, SamplingParams(max_tokens=3, n=128, temperature=1.0)))
    decoder.wait_for_pass()
    assert len(llm.engine.running) + len(llm.engine.waiting) == 2
    assert llm.snapshot().num_waiting == 50 * 128 - 2
    decoder.open_gate()
    llm.close()
    assert isinstance(ended(thread, found), ClosedError)
    with pytest.raises(ConfigError, match="n is 129; allowed: from 1 to 128"):
        SamplingParams(n=129)


# --- the end


def test_close_ends_what_runs_and_refuses_what_comes(decoder):
    with toy_llm(decoder, TOKENIZER, batch_size=1) as llm:
        stream = llm.stream([1], LONG)
        next(stream)
        waiting = in_thread(lambda: llm.generate([[2], [3]], SHORT))
        wait_until(lambda: llm.snapshot().num_waiting >= 2)
        thread = llm._loop._thread
    assert not thread.is_alive()
    with pytest.raises(ClosedError, match="closed while the request was running"):
        list(stream)
    assert isinstance(ended(*waiting), ClosedError)
    assert llm.engine.parts.target.cache.num_open == 0
    for call in (llm.generate, lambda p: list(llm.stream(p)), lambda p: asyncio.run(anext(llm.astream(p)))):
        with pytest.raises(ClosedError, match="this LLM is closed; make a new one"):
            call([1])
    llm.close()
    never_used = toy_llm(decoder, TOKENIZER)
    never_used.close()
    with pytest.raises(ClosedError):
        never_used.generate([1])


def test_close_may_let_everything_finish(decoder):
    llm = toy_llm(decoder, TOKENIZER, batch_size=1)
    decoder.close_gate()
    calls = [in_thread(lambda p=p: llm.generate([[p]], SHORT)) for p in (1, 2, 3)]
    decoder.wait_for_pass()
    wait_until(lambda: llm.snapshot().num_waiting >= 2)
    closing = in_thread(lambda: llm.close(drain=True))
    wait_until(lambda: llm._loop._refusal is not None)
    with pytest.raises(ClosedError):
        llm.generate([4])
    decoder.open_gate()
    assert [ended(*call)[0].token_ids for call in calls] == [plain([p]) for p in (1, 2, 3)]
    assert ended(*closing) is None
    assert not llm._loop._thread.is_alive()


def test_an_llm_that_is_forgotten_ends_its_thread(decoder):
    llm = toy_llm(decoder, TOKENIZER)
    assert llm.generate([1], SHORT)[0].token_ids == plain([1])
    thread, engine = llm._loop._thread, weakref.ref(llm.engine)
    del llm
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    gc.collect()
    assert engine() is None, "something keeps the engine and its memory"


def test_an_open_stream_keeps_its_llm(decoder):
    stream = toy_llm(decoder, TOKENIZER).stream([1], SHORT)
    gc.collect()
    assert [t for piece in stream for t in piece.token_ids] == plain([1])


def test_a_fault_of_the_loop_reaches_everyone(decoder, monkeypatch, caplog):
    llm = toy_llm(decoder, TOKENIZER)
    stream = llm.stream([1], LONG)
    next(stream)
    monkeypatch.setattr(llm._loop, "_hand_over", lambda: 1 / 0)
    with pytest.raises(ForewordError, match="ended by ZeroDivisionError"):
        list(stream)
    with pytest.raises(ForewordError, match="make a new LLM"):
        llm.generate([1])
    assert "the engine's loop has ended" in caplog.text


# --- prompts share a pass


def test_short_prompts_do_not_wait_behind_a_long_one():
    llm = toy_llm(ToyDecoder(vocab_size=TOKENIZER.vocab_size), TOKENIZER)
    prompts = [[n % 250 for n in range(3000)], [1], [2], [3]]
    found = list(llm.as_completed(prompts, SamplingParams(max_tokens=2, ignore_eos=True)))
    assert [place for place, _ in found] == [1, 2, 3, 0]
    for place, result in found:
        assert result.token_ids == plain(prompts[place], SamplingParams(max_tokens=2, ignore_eos=True))


def test_three_prompts_take_one_pass_where_they_fit(decoder):
    llm: LLM = toy_llm(decoder, TOKENIZER)
    decoder.close_gate()
    first = in_thread(lambda: llm.generate([9], SHORT))
    decoder.wait_for_pass()
    others = in_thread(lambda: llm.generate([[1, 2, 3], [4, 5], [6]], SamplingParams(max_tokens=1)))
    wait_until(lambda: llm.snapshot().num_waiting >= 3)
    decoder.open_gate()
    ended(*first)
    ended(*others)
    assert decoder.num_passes == 12


@pytest.mark.parametrize(
    ("unread", "budget", "shares"),
    [
        ([3000, 1, 1, 1], 512, [509, 1, 1, 1]),
        ([3000, 3000], 512, [256, 256]),
        ([10, 600, 600], 512, [10, 251, 251]),
        ([5], 512, [5]),
        ([], 512, []),
        ([9, 9, 9], 2, [1, 1, 1]),
    ],
)
def test_shares_of_a_pass(unread, budget, shares):
    assert prefill_shares(unread, budget) == shares


# --- what it counts


def test_a_snapshot_counts_what_was_done():
    llm = toy_llm(ToyDecoder(vocab_size=TOKENIZER.vocab_size), TOKENIZER, "ngram", batch_size=2)
    before = llm.snapshot()
    assert (before.num_steps, before.finished, before.end_to_end.count) == (0, {}, 0)
    results = llm.generate([[1, 2] * 20, [3]], SamplingParams(max_tokens=30, n=2, ignore_eos=True))
    found = settled(llm).metrics and llm.snapshot()
    stats = [r.stats for r in results]
    assert (found.num_running, found.num_waiting, found.finished) == (0, 0, {"length": 4})
    assert found.generated_tokens == sum(len(r.token_ids) for r in results) == 120
    assert (found.prompt_tokens, found.cached_tokens) == (82, sum(s.cached_tokens for s in stats))
    drafts = found.drafters["ngram"]
    assert drafts.drafted_tokens == sum(s.drafted_tokens for s in stats) > 0
    assert drafts.accepted_tokens == sum(s.accepted_tokens for s in stats)
    assert sum(drafts.accepted_at_depth) == drafts.accepted_tokens
    assert len(drafts.drafted_at_depth) == max(len(s.drafted_at_depth) for s in stats)
    assert found.queue_time.count == found.time_to_first_token.count == found.end_to_end.count == 4
    assert found.time_between_tokens.count == 120 - 4
    assert len(found.end_to_end.counts) == len(found.end_to_end.bounds_s) + 1
    assert found.end_to_end.total_s >= found.time_to_first_token.total_s >= found.queue_time.total_s > 0
    assert json.loads(json.dumps(found.as_dict()))["finished"] == {"length": 4}
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.num_steps = 0


def test_a_snapshot_counts_errors_and_readers_that_left(decoder):
    llm = toy_llm(decoder, TOKENIZER, batch_size=1)

    def broken():
        raise RuntimeError("no pass")

    decoder.on_pass = broken
    with pytest.raises(RuntimeError):
        llm.generate([[1], [2], [3]], SHORT)
    decoder.on_pass = lambda: None
    settled(llm)
    finished = llm.snapshot().finished
    assert finished["error"] >= 1
    assert finished["error"] + finished.get("abort", 0) == 3
    assert (llm.snapshot().num_running, llm.snapshot().num_waiting) == (0, 0)


# --- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": "2"}, "threads is '2'; allowed: a whole number, 1 or above"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"threads": True}, "threads is True"),
        ({"runtime": None}, "unknown runtime None; known"),
        ({"dtype": 8}, "unknown dtype 8; known"),
        ({"kv_dtype": ["float32"]}, "unknown kv_dtype"),
        ({"device": 0}, "device is 0; allowed"),
        ({"policy": 5}, "policy is 5; allowed: the name of a policy"),
        ({"policy": "best"}, "unknown policy 'best'"),
        ({"cache_dir": 5}, "cache_dir is 5; allowed: the path of a folder"),
        ({"show_progress": "yes"}, "show_progress is 'yes'"),
        ({"drafter": 5}, "drafter is 5; allowed: a name"),
        ({"speculative_config": "ngram"}, "speculative_config is 'ngram'; allowed: a mapping"),
        ({"profile": 5}, "profile is 5; allowed: the path"),
        ({"batch_size": "8"}, "batch_size is '8'; allowed: a whole number"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_queue": 0}, "max_queue is 0; allowed: a whole number, 1 or above, or None"),
        ({"num_speculative_tokens": "4"}, "num_speculative_tokens is '4'"),
        ({"model": 5}, "model is 5; allowed: a folder"),
    ],
)
@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_arguments_of_a_wrong_type_are_one_line_and_load_nothing(kind, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        kind(**{"model": "/no/such/model"} | options)
    assert "\n" not in str(caught.value)


def test_an_argument_that_does_not_exist_is_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        LLM("/no/such/model", foo=1)
    with pytest.raises(ConfigError, match="threads cannot change a model that is already loaded"):
        toy_llm(ToyDecoder(vocab_size=TOKENIZER.vocab_size), TOKENIZER, threads=2)


class Uncopied:
    """A stateful processor whose copies cannot be made."""

    def clone(self):
        raise ValueError("no copy")

    def accept(self, token_id):
        pass

    def __call__(self, token_ids, logits):
        return logits


@pytest.mark.parametrize("way", ["abort", "timeout"])
def test_a_request_that_cannot_even_be_made_ends_its_own_call_alone(decoder, way):
    """It is made to be ended: what its owner gave may raise then."""
    llm = toy_llm(decoder, TOKENIZER, batch_size=1)
    running = llm.stream([1], LONG)
    next(running)
    broken = SamplingParams(max_tokens=5, logits_processors=(Uncopied(),))
    options = {"timeout_s": 0.01} if way == "timeout" else {"request_id": "broken"}
    decoder.close_gate()
    call = in_thread(lambda: llm.generate([[2]], broken, **options))
    wait_until(lambda: len(llm._loop._queued) == 1)
    time.sleep(0.02)
    llm.abort("broken")
    decoder.open_gate()
    error = ended(*call)
    assert isinstance(error, ValueError)
    next(running)
    running.close()
    assert llm.generate([[3]], SHORT)[0].token_ids == plain([3])


def test_ids_that_are_made_are_none_that_a_caller_would_choose(decoder):
    llm = toy_llm(decoder, TOKENIZER)
    taken = [llm.stream([1], LONG, request_id=f"request-{number}") for number in range(1, 2000, 400)]
    for stream in taken:
        next(stream)
    assert [r.token_ids for r in llm.generate([[2], [3]], SHORT)] == [plain([2]), plain([3])]
    for stream in taken:
        stream.close()


def test_aborting_each_of_many_prompts_looks_at_each_once(decoder, monkeypatch):
    """Not at all of the call for each: counted by comparisons, not by the clock."""
    num_prompts, looks = 300, 0

    def counted(prompt, other):
        nonlocal looks
        looks += 1
        return prompt is other

    monkeypatch.setattr(PreparedPrompt, "__eq__", counted)
    monkeypatch.setattr(PreparedPrompt, "__hash__", lambda prompt: id(prompt) >> 4)
    llm = toy_llm(decoder, TOKENIZER, batch_size=1)
    decoder.close_gate()
    ids = [str(number) for number in range(num_prompts)]
    call = in_thread(lambda: llm.generate([[1, 2]] * num_prompts, LONG, request_id=ids))
    decoder.wait_for_pass()
    for request_id in ids:
        llm.abort(request_id)
    decoder.open_gate()
    results = ended(*call)
    assert [result.finish_reason for result in results] == ["abort"] * num_prompts
    assert looks < 4 * num_prompts


def test_a_snapshot_counts_answers_of_no_token_and_what_an_abort_frees(decoder):
    llm = toy_llm(decoder, TOKENIZER, prefix_cache=False)
    for _ in range(3):
        llm.generate([[1]], SamplingParams(max_tokens=0))
    assert (llm.snapshot().num_waiting, llm.snapshot().finished) == (0, {"length": 3})
    stream = llm.stream([1], LONG)
    next(stream)
    stream.close()
    settled(llm)
    assert llm.snapshot().kv_cache_bytes == 0


def test_calls_that_the_batch_has_room_for_are_no_queue(decoder):
    """The thread reads its notes between passes: what it has not read yet may still begin with the next one."""
    llm = toy_llm(decoder, TOKENIZER, batch_size=4, max_queue=1)
    running = llm.stream([1], LONG)
    next(running)
    decoder.close_gate()
    decoder.wait_for_pass()
    calls = [in_thread(lambda n=n: llm.generate([[n]], SHORT)[0].token_ids) for n in (2, 3, 4, 5)]
    wait_until(lambda: len(llm._loop._queued) == 4)
    with pytest.raises(QueueFullError):
        llm.generate([[6]], SHORT)
    decoder.open_gate()
    assert [ended(*call) for call in calls] == [plain([n]) for n in (2, 3, 4, 5)]
    running.close()
