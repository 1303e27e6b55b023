"""What goes wrong ends what it concerns, is told to its owner, and leaves no memory behind."""

import asyncio
import logging
import threading

import pytest

from foreword.draft.base import BaseDrafter
from foreword.draft.lookup.lookahead import LookaheadDrafter
from foreword.draft.lookup.past_outputs import PastOutputs
from foreword.draft.lookup.recycling import RecyclingDrafter
from foreword.engine.request import Request
from foreword.errors import CapacityError, ForewordError
from foreword.sampling.params import SamplingParams
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Matching
from tests.support.settled import settled
from tests.support.toy_decoder import ToyCache, ToyDecoder
from tests.support.toy_engine import make_engine, plain_tokens
from tests.support.toy_llm import byte_tokenizer, toy_llm

TOKENIZER = byte_tokenizer("hello", " world")
DECODER = ToyDecoder(vocab_size=TOKENIZER.vocab_size)
PARAMS = SamplingParams(max_tokens=12)
GOOD, BAD = [1, 2, 3], [9, 8, 7]


def make_request(prompt=GOOD, params=PARAMS):
    return Request(list(prompt), params, context_len=4096)


def drain(engine):
    while engine.step() is not None:
        pass


class FaultyDrafter(BaseDrafter):
    name = "faulty"

    def __init__(self, *failing: str) -> None:
        self.failing, self.stopped = failing, []

    def start(self, request):
        if "start" in self.failing:
            raise RuntimeError("no start")

    def stop(self, request):
        self.stopped.append(request.request_id)
        if "stop" in self.failing:
            raise RuntimeError("no stop")


class FaultyMatching(Matching):
    """Raises for requests of one seed, in one method, from a given place on."""

    def __init__(self, method: str, seed: int = 666) -> None:
        super().__init__()
        object.__setattr__(self, "fault", (method, seed))

    def ask(self, tree, first_node, kv_len, sampler):
        if self.fault == ("ask", sampler.seed) and kv_len > 5:
            raise ValueError("no ask")
        return super().ask(tree, first_node, kv_len, sampler)

    def decide(self, tree, answers, sampler):
        if self.fault == ("decide", sampler.seed) and len(answers.token_ids) > 5:
            raise ValueError("no decide")
        return super().decide(tree, answers, sampler)


def faulty_processor(token_ids, logits):
    if len(token_ids) > 5:
        raise ValueError("no processor")
    return logits


class Guessing(BaseDrafter):
    """Two guesses at every step, so that grammars and verifiers see drafted nodes."""

    name = "guessing"

    def propose(self, requests, plans):
        trees = super().propose(requests, plans)
        return [
            DraftTree([*t.token_ids, 1, 2], [*t.parents, t.num_known - 1, t.num_known], t.num_known)
            if p.num_nodes > 1 and p.depth > 1
            else t
            for t, p in zip(trees, plans, strict=True)
        ]


class Misleading(BaseDrafter):
    """Proposes something else than trees that begin with the pending tokens."""

    name = "misleading"

    def __init__(self, change) -> None:
        self.change = change

    def propose(self, requests, plans):
        return self.change(super().propose(requests, plans))


def _other_root(trees):
    return [DraftTree([t.token_ids[0] ^ 1, *t.token_ids[1:]], t.parents, t.num_known) for t in trees]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trees: None, "NoneType for 1 requests"),
        (lambda trees: trees[:-1], "0 trees for 1 requests"),
        (lambda trees: [[1, 2] for _ in trees], "list as a tree"),
        (_other_root, "begins with 3 known tokens"),
        (lambda trees: [DraftTree(t.token_ids[-1:], [-1], 1) for t in trees], "begins with 1 known tokens"),
    ],
    ids=["nothing", "too few", "a list", "another root", "the last token alone"],
)
def test_a_drafter_whose_trees_do_not_fit_is_named_and_changes_no_token(change, message):
    engine = make_engine(DECODER, Misleading(change))
    request = make_request()
    engine.add(request)
    with pytest.raises(ForewordError, match=f"drafter 'misleading' proposed .*{message}.*; allowed: "):
        drain(engine)
    assert request.new_ids == []
    assert engine.parts.target.cache.num_open == 0


@pytest.mark.parametrize("fails", ["start", "open"])
def test_a_request_that_cannot_start_ends_and_leaves_nothing(fails, monkeypatch):
    drafter = FaultyDrafter(fails)
    engine = make_engine(DECODER, drafter)
    cache = engine.parts.target.cache
    if fails == "open":
        monkeypatch.setattr(cache, "open", lambda rows: (_ for _ in ()).throw(RuntimeError("no open")))
    request = make_request()
    engine.add(request)
    with pytest.raises(RuntimeError, match=f"no {fails}"):
        engine.step()
    assert request.finish_reason == "abort"
    assert str(request.error) == f"no {fails}"
    assert (len(engine.waiting), len(engine.running), cache.num_open) == (0, 0, 0)
    assert drafter.stopped == ([request.request_id] if fails == "start" else [])
    assert engine.step() is None


def test_an_answer_survives_a_drafter_that_cannot_stop(caplog):
    engine = make_engine(DECODER, FaultyDrafter("stop"))
    request = make_request()
    engine.add(request)
    drain(engine)
    assert request.new_ids == plain_tokens(DECODER, GOOD, PARAMS)
    assert (request.finish_reason, request.error) == ("length", None)
    assert engine.parts.target.cache.num_open == 0
    assert "faulty failed to end request" in caplog.text


def test_past_outputs_go_on_without_their_file(tmp_path, caplog):
    past = PastOutputs(8, 10, 100, 50, tmp_path / "gone" / "past.jsonl")
    (tmp_path / "gone").rmdir()
    with caplog.at_level(logging.WARNING):
        past.add([1, 2, 3])
        past.add([4, 5, 6])
    assert len(past) == 2
    assert caplog.text.count("cannot be written") == 1
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("fault", ["ask", "decide", "guide", "extend", "processor"])
def test_an_error_of_one_request_ends_that_one_alone(fault, monkeypatch):
    engine = make_engine(DECODER, Guessing(), verifier=FaultyMatching(fault))
    processors = {"logits_processors": (faulty_processor,)} if fault == "processor" else {}
    good, bad = make_request(), make_request(BAD, SamplingParams(max_tokens=12, seed=666, **processors))
    if fault in ("guide", "extend"):
        original = getattr(bad, fault)

        def broken(*args):
            if len(bad.new_ids) > 2:
                raise ValueError(f"no {fault}")
            return original(*args)

        monkeypatch.setattr(bad, fault, broken)
    engine.add(bad)
    engine.add(good)
    drain(engine)
    assert good.new_ids == plain_tokens(DECODER, GOOD, PARAMS)
    assert good.error is None
    assert bad.finish_reason == "abort"
    # The tests' type checker tries a processor's choices itself, and then has words of its own.
    assert str(bad.error) == f"no {fault}" or (fault == "processor" and "parameter 'choices'" in str(bad.error))
    assert 2 < len(bad.new_ids) < 12
    assert bad.new_ids == plain_tokens(DECODER, BAD, PARAMS)[: len(bad.new_ids)]
    assert engine.parts.target.cache.num_open == 0


def in_threads(*calls):
    """What each call returned or raised."""
    results = [None] * len(calls)

    def keep(index):
        try:
            results[index] = calls[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=keep, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_the_error_reaches_its_owner_and_the_neighbour_gets_the_whole_answer():
    both = threading.Barrier(2)
    llm = toy_llm(DECODER, TOKENIZER)
    llm.replace_engine(make_engine(DECODER, Guessing(), verifier=FaultyMatching("decide")))

    def ask(prompt, **options):
        both.wait()
        return llm.generate([prompt], SamplingParams(max_tokens=60, **options))

    answer, error = in_threads(lambda: ask(GOOD), lambda: ask(BAD, seed=666))
    assert answer[0].token_ids == plain_tokens(DECODER, GOOD, SamplingParams(max_tokens=60))[: len(answer[0].token_ids)]
    assert answer[0].finish_reason in ("stop", "length")
    assert isinstance(error, ValueError)
    assert str(error) == "no decide"


@pytest.mark.parametrize("way", ["generate", "stream", "astream"])
@pytest.mark.parametrize("error", [RuntimeError("no power"), KeyboardInterrupt()], ids=["failed", "interrupted"])
def test_a_failed_pass_is_told_to_every_owner(way, error, monkeypatch):
    decoder = ToyDecoder(vocab_size=TOKENIZER.vocab_size)
    llm = toy_llm(decoder, TOKENIZER)
    original = decoder.forward

    def forward(batch, *args):
        if len(batch.slots) > 1:
            raise error
        return original(batch, *args)

    monkeypatch.setattr(decoder, "forward", forward)
    neighbour = llm.stream([5], SamplingParams(max_tokens=4000))
    next(neighbour)
    calls = {
        "generate": lambda: llm.generate([[1], [2]], PARAMS),
        "stream": lambda: list(llm.stream([1], PARAMS)),
        "astream": lambda: asyncio.run(collect(llm.astream([1], PARAMS))),
    }
    expected = RuntimeError if isinstance(error, RuntimeError) else ForewordError
    with pytest.raises(expected):
        calls[way]()
    with pytest.raises(expected):
        list(neighbour)
    assert settled(llm).parts.target.cache.num_open == 0
    assert llm.generate([[1]], PARAMS)[0].token_ids == plain_tokens(decoder, [1], PARAMS)


async def collect(pieces):
    return [piece async for piece in pieces]


class TightCache(ToyCache):
    """Memory for so many rows over all regions, and nobody knows it beforehand."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def open(self, capacity: int) -> int:
        self._take(capacity)
        return super().open(capacity)

    def reserve(self, slot: int, capacity: int) -> None:
        held = self.capacities[slot]
        if capacity > held:
            self._take(max(capacity, held * 3 // 2) - held)
        super().reserve(slot, capacity)

    def _take(self, num_rows: int) -> None:
        if self.num_bytes + num_rows > self.limit:
            raise CapacityError(f"{num_rows} rows do not fit")


class TightDecoder(ToyDecoder):
    def new_cache(self):
        return TightCache(20)


def test_finished_regions_make_room_where_memory_is_short():
    llm = toy_llm(TightDecoder(TOKENIZER.vocab_size), TOKENIZER)
    for start in range(4):  # each takes 14 rows, of 20
        (result,) = llm.generate([[start, 1]], PARAMS)
        assert result.token_ids == plain_tokens(DECODER, [start, 1], PARAMS)
    assert llm.engine.parts.target.cache.num_open == 1
    with pytest.raises(CapacityError):  # nothing is left to give
        llm.generate([[1]], SamplingParams(max_tokens=40))
    assert llm.engine.parts.target.cache.num_open == 0


def test_a_native_cache_says_what_does_not_fit():
    pytest.importorskip("foreword_kernels", reason="the native kernels are not built")
    from foreword.runtime.native_runtime import NativeKVCache, load_kernels

    cache = NativeKVCache(load_kernels(), DECODER.spec)
    slot = cache.open(8)
    with pytest.raises(CapacityError, match="cache of 1099511627776 positions takes .* MiB.* 1 open"):
        cache.open(1 << 40)
    with pytest.raises(CapacityError, match="use a smaller batch, a shorter context or kv_dtype"):
        cache.reserve(slot, 1 << 40)
    assert cache.num_open == 1
    assert cache.length(slot) == 0


def test_few_compiled_grammars_are_kept():
    pytest.importorskip("llguidance")
    from foreword.sampling.grammar import Grammar
    from foreword.sampling.grammar_matcher import GrammarCompiler

    compiler = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size, (TOKENIZER.eos_token_id,))
    kept = Grammar.regex("keep[a-z]")
    for number in range(40):
        compiler.compile(Grammar.regex(f"a{{{number + 1}}}"))
        assert compiler.compile(kept).allows(TOKENIZER.encode("keepx"))
    assert len(compiler._made) == 32
    assert kept in compiler._made
    assert Grammar.regex("a{1}") not in compiler._made


@pytest.mark.parametrize("name", ["lookahead", "recycling"])
def test_the_head_reads_prompt_nodes_only_for_drafters_that_learn_from_them(name, monkeypatch):
    decoder = ToyDecoder()
    drafter = LookaheadDrafter(3, 3, 2) if name == "lookahead" else RecyclingDrafter(12)
    seen, original = [], decoder.forward

    def forward(batch, cache, need, *args):
        seen.append((batch.num_nodes, list(need.top_nodes)))
        return original(batch, cache, need, *args)

    monkeypatch.setattr(decoder, "forward", forward)
    engine = make_engine(decoder, drafter, prefill_chunk=50)
    prompt, other = [n % 11 for n in range(20)], [n % 7 for n in range(60)]
    requests = [make_request(prompt), make_request(other)]
    for request in requests:
        engine.add(request)
    drain(engine)
    assert [r.new_ids for r in requests] == [plain_tokens(ToyDecoder(), p, PARAMS) for p in (prompt, other)]
    assert seen[0] == (50, [19, 49] if name == "lookahead" else list(range(50)))  # 20 and 30 of them
    num_nodes, nodes = seen[1]  # one decodes, the other reads its prompt
    assert num_nodes > 30
    assert len(nodes) == (num_nodes - 29 if name == "lookahead" else num_nodes)
