"""Where memory for keys and values is short, requests wait or make way, and say what they would have said anyway."""

import random

import pytest

from foreword.engine.request import Request
from foreword.errors import CapacityError
from foreword.sampling.params import SamplingParams
from tests.support.toy_decoder import ToyCache, ToyDecoder
from tests.support.toy_engine import plain_tokens
from tests.support.toy_llm import byte_tokenizer, toy_llm

pytestmark = pytest.mark.usefixtures("without_shape_checks")
TOKENIZER = byte_tokenizer("hello")
DECODER = ToyDecoder(vocab_size=TOKENIZER.vocab_size)
DRAFTERS = ("none", "ngram", "suffix", "recycling", "lookahead", "layerskip")


class Watched(ToyCache):
    """Remembers the most that was held."""

    most = 0

    def open(self, capacity: int) -> int:
        slot = super().open(capacity)
        self.most = max(self.most, self.num_bytes)
        return slot

    def reserve(self, slot: int, capacity: int) -> None:
        super().reserve(slot, capacity)
        self.most = max(self.most, self.num_bytes)


class WatchedDecoder(ToyDecoder):
    def new_cache(self) -> ToyCache:
        return Watched()


def tight_llm(drafter="none", *, rows: int, first_rows: int = 512, monkeypatch=None, **options):
    """A byte a row. `first_rows`: what a request gets beyond its prompt before it has to grow."""
    if monkeypatch is not None:
        monkeypatch.setattr("foreword.engine.kv_memory.FIRST_ROWS", first_rows)
    decoder = WatchedDecoder(vocab_size=TOKENIZER.vocab_size, num_layers=2)
    return toy_llm(decoder, TOKENIZER, drafter, kv_cache_bytes=rows, **options)


def drain(engine):
    while engine.step():
        pass


def expected(prompts, params):
    return [plain_tokens(DECODER, p, q) for p, q in zip(prompts, params, strict=True)]


@pytest.mark.parametrize(
    ("drafter", "prefix_cache"), [("none", True), ("suffix", True), ("layerskip", True), ("ngram", False)]
)
def test_twenty_requests_through_room_for_three(drafter, prefix_cache):
    llm = tight_llm(drafter, rows=3 * 30, prefix_cache=prefix_cache)
    prompts = [[i, i + 1, *range(i % 7)] for i in range(20)]
    params = [SamplingParams(max_tokens=20, ignore_eos=True, seed=i, temperature=i % 2) for i in range(20)]
    results = llm.generate(prompts, params)
    assert [r.token_ids for r in results] == expected(prompts, params)
    cache = llm.engine.parts.target.cache
    assert cache.most <= 90
    assert cache.num_open == len(llm.engine.memory.prefixes)
    assert all(r.stats.num_steps <= 19 for r in results)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_youngest_makes_way_and_goes_on_later(drafter, monkeypatch):
    llm = tight_llm(drafter, rows=120, first_rows=4, monkeypatch=monkeypatch, batch_size=4)
    prompts = [[i, 7, 7, i] for i in range(6)]
    params = [SamplingParams(max_tokens=60, ignore_eos=True, seed=i, temperature=i % 2, logprobs=1) for i in range(6)]
    results = llm.generate(prompts, params)
    assert [r.token_ids for r in results] == expected(prompts, params)
    assert llm.engine.memory.num_preempted > 1
    assert llm.engine.parts.target.cache.most <= 120
    assert all(len(r.logprobs) == 60 for r in results)
    if drafter == "none":
        assert all(r.stats.num_steps == 59 for r in results)  # reading again is no step


def test_prompt_logprobs_are_whole_after_a_preemption(monkeypatch):
    llm = tight_llm(rows=100, first_rows=4, monkeypatch=monkeypatch)
    prompts = [list(range(i, i + 20)) for i in range(3)]
    params = SamplingParams(max_tokens=30, ignore_eos=True, prompt_logprobs=1)
    results = llm.generate(prompts, params)
    assert llm.engine.memory.num_preempted > 0
    roomy = tight_llm(rows=10_000).generate(prompts, params)
    assert [r.prompt_logprobs for r in results] == [r.prompt_logprobs for r in roomy]
    assert [r.token_ids for r in results] == [r.token_ids for r in roomy]


def test_who_could_never_fit_is_told_both_numbers():
    llm = tight_llm(rows=3 * 2**20 // 2)
    decoder = llm.engine.parts.target.decoder
    request = Request([1] * (2 * 2**20), SamplingParams(max_tokens=3), context_len=4 * 2**20)
    llm.engine.add(request)
    with pytest.raises(CapacityError, match=r"2097152 tokens needs 2\.0 MiB .* may take 1\.5 MiB \(kv_cache_bytes\)"):
        llm.engine.step()
    assert request.finish_reason == "abort"
    assert llm.engine.parts.target.cache.num_open == 0
    assert llm.generate([[1, 2]], SamplingParams(max_tokens=3))[0].token_ids == plain_tokens(
        decoder, [1, 2], SamplingParams(max_tokens=3), (TOKENIZER.eos_token_id,)
    )


def test_who_outgrows_all_there_is_ends_with_an_error_and_the_others_go_on():
    llm = tight_llm(rows=50)
    long = Request([1, 2], SamplingParams(max_tokens=100), context_len=4096)
    short = Request([3, 4], SamplingParams(max_tokens=20), context_len=4096)
    llm.engine.add(long)
    llm.engine.add(short)
    with pytest.raises(CapacityError, match="do not fit"):
        drain(llm.engine)
    drain(llm.engine)
    assert isinstance(long.error, CapacityError)
    assert long.new_ids == plain_tokens(DECODER, [1, 2], long.params)[: len(long.new_ids)]
    assert len(long.new_ids) == 49, "every row was made use of"
    assert short.new_ids == plain_tokens(DECODER, [3, 4], short.params)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_do_not_keep_an_answer_from_its_last_row(drafter):
    llm = tight_llm(drafter, rows=43)
    params = SamplingParams(max_tokens=40, ignore_eos=True)  # prompt and answer but for its last token: 43 rows
    (result,) = llm.generate([[1, 1, 2, 1]], params)
    assert result.token_ids == plain_tokens(DECODER, [1, 1, 2, 1], params)
    assert llm.engine.parts.target.cache.most <= 2 * 43  # for the moment of a copy


def test_a_shortage_that_nobody_knew_of_is_one_request_s_wait(monkeypatch):
    """The machine's own memory ends before the budget: as many run as it bears."""
    llm = tight_llm("ngram", rows=10_000, first_rows=4, monkeypatch=monkeypatch)
    cache = llm.engine.parts.target.cache
    inner = cache.reserve

    def reserve(slot, capacity):
        if cache.num_bytes + capacity - cache.capacities[slot] > 150:
            raise CapacityError("no memory")
        inner(slot, capacity)

    monkeypatch.setattr(cache, "reserve", reserve)
    prompts = [[i, i] for i in range(8)]
    params = [SamplingParams(max_tokens=60, ignore_eos=True)] * 8
    assert [r.token_ids for r in llm.generate(prompts, params)] == expected(prompts, params)
    assert llm.engine.memory.num_preempted > 0


def test_random_requests_budgets_and_aborts(monkeypatch):
    """Everything at once; at the end every region is accounted for and holds what it should."""
    total_hits = total_preempted = 0
    for number in range(8):
        rng = random.Random(number)
        rows = rng.choice((70, 90, 130, 1000))
        llm = tight_llm(
            rng.choice(DRAFTERS),
            rows=rows,
            first_rows=rng.choice((2, 4, 8, 512)),
            monkeypatch=monkeypatch,
            batch_size=rng.randint(1, 5),
        )
        llm.engine.parts.controller.prefill_chunk = rng.choice((1, 5, 16, 512))
        stems = [[rng.randint(0, 200) for _ in range(rng.choice((3, 20, 40)))] for _ in range(3)]
        requests = []
        for _ in range(rng.randint(3, 12)):
            prompt = [*rng.choice(stems)[: rng.randint(1, 40)], *(rng.randint(0, 3) for _ in range(rng.randint(0, 6)))]
            params = SamplingParams(
                max_tokens=rng.randint(1, 20), ignore_eos=True, n=rng.choice((1, 1, 3)), seed=rng.randint(0, 9),
                temperature=rng.choice((0.0, 1.0)),
            )  # fmt: skip
            (prepared,) = llm._prepare([prompt], params, None)
            requests += [prepared.request(sample) for sample in range(params.n)]
        for request in requests:
            llm.engine.add(request)
            if rng.random() < 0.3:
                llm.engine.step()
            if rng.random() < 0.1:
                llm.engine.abort(rng.choice(requests))
        drain(llm.engine)
        check_all(llm, requests, rows)
        total_hits += llm.engine.metrics.prefix_cache_hits
        total_preempted += llm.engine.memory.num_preempted
    assert total_hits > 10
    assert total_preempted > 2


def check_all(llm, requests, rows):
    engine = toy_llm(DECODER, TOKENIZER, prefix_cache=False, batch_size=1).engine
    for request in requests:
        prompt, sample = request.token_ids[: request.prompt_len], request.sampler.sample_index
        alone = Request(prompt, request.params, context_len=4096, sample_index=sample)
        engine.add(alone)
        drain(engine)
        assert request.error is None
        whole = request.new_ids == alone.new_ids
        assert whole or (request.finish_reason == "abort" and request.new_ids == alone.new_ids[: len(request.new_ids)])
    cache, prefixes = llm.engine.parts.target.cache, llm.engine.memory.prefixes
    assert cache.most <= 2 * rows
    assert cache.num_open == len(prefixes)
    assert cache.num_bytes <= rows
    for region in prefixes._idle:
        held = cache.regions[region.slot]
        assert held == [(token, place) for place, token in enumerate(region.token_ids[: region.num_held])]
        assert cache.capacities[region.slot] == region.capacity
