"""The ways in which programs ask an `LLM`, with readers that go away beside them; each returns the answers in order.

What else happens while they run (streams cut, tasks cancelled, garbage collected in the middle of a pass) may not change
a token.
"""

import _thread
import asyncio
import contextlib
import gc
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from foreword.engine.llm import LLM
from foreword.engine.result import Piece, Result
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams

Prompts, Params, Drafting = Sequence[list[int]], Sequence[SamplingParams], Sequence[DraftingParams]
Ask = Callable[[LLM, Prompts, Params, Drafting, random.Random], list[Result]]
LONG = SamplingParams(max_tokens=64, ignore_eos=True, temperature=0.7, seed=5)
JOIN_S = 240  # a hang, not a slow machine


def ask(style: str, llm: LLM, prompts: Prompts, params: Params, drafting: Drafting, seed: int) -> list[Result]:
    """The answers in the order of `generate`: by prompt, then by sample."""
    rng = random.Random(f"caller {seed}")
    with _eager_collector() if style in DISTURBED else contextlib.nullcontext():
        return STYLES[style](llm, prompts, params, drafting, rng)


class Pieces:
    """What a reader of one stream has seen."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._ids: dict[int, list[int]] = {}
        self._ends: dict[int, Result] = {}

    def add(self, piece: Piece) -> None:
        self._texts[piece.sample_index] = self._texts.get(piece.sample_index, "") + piece.text
        self._ids.setdefault(piece.sample_index, []).extend(piece.token_ids)
        if piece.result is not None:
            self._ends[piece.sample_index] = piece.result

    def results(self) -> list[Result]:
        """The results, with what the pieces said in the place of text and tokens."""
        return [replace(r, text=self._texts[s], token_ids=self._ids[s]) for s, r in sorted(self._ends.items())]


def _generate(llm, prompts, params, drafting, rng) -> list[Result]:
    return llm.generate(list(prompts), list(params), drafting=list(drafting))


def _iterate(llm, prompts, params, drafting, rng) -> list[Result]:
    return list(llm.iterate(list(prompts), list(params), drafting=list(drafting)))


def _as_completed(llm, prompts, params, drafting, rng) -> list[Result]:
    found = dict(llm.as_completed(list(prompts), list(params), drafting=list(drafting)))
    return [found[place] for place in sorted(found)]


def _one_by_one(llm, prompts, params, drafting, rng) -> list[Result]:
    results = []
    for prompt, options, how in zip(prompts, params, drafting, strict=True):
        seen = Pieces()
        for piece in llm.stream(prompt, options, drafting=how):
            seen.add(piece)
        results += seen.results()
    return results


def _interleaved(llm, prompts, params, drafting, rng) -> list[Result]:
    """Streams read in a random order, among them some that are dropped: closed, forgotten, or forgotten in a cycle."""
    open_ = [(Pieces(), llm.stream(p, o, drafting=d)) for p, o, d in zip(prompts, params, drafting, strict=True)]
    seen = [pieces for pieces, _ in open_]
    dropped = [llm.stream(rng.choice(prompts), LONG) for _ in range(rng.randint(0, 3))]
    while open_:
        if dropped and rng.random() < 0.4:
            _drop(dropped.pop(), rng)
        place = rng.randrange(len(open_))
        piece = next(open_[place][1], None)
        if piece is None:
            open_.pop(place)
        else:
            open_[place][0].add(piece)
    return [result for pieces in seen for result in pieces.results()]


def _drop(stream: Iterator[Piece], rng: random.Random) -> None:
    for _ in range(rng.randint(0, 3)):
        next(stream, None)
    way = rng.choice(("close", "forget", "cycle"))
    if way == "close":
        stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    elif way == "cycle":
        holder = _Holder()
        holder.stream, holder.me = stream, holder


class _Holder:
    """Something that refers to itself, as an exception's traceback or a closure does: only the collector frees it."""


def _astream(llm, prompts, params, drafting, rng) -> list[Result]:
    """Tasks side by side, others cancelled among them."""
    return asyncio.run(_gather(llm, prompts, params, drafting, rng))


async def _gather(llm, prompts, params, drafting, rng) -> list[Result]:
    async def read(prompt, options, how) -> list[Result]:
        seen = Pieces()
        async for piece in llm.astream(prompt, options, drafting=how):
            seen.add(piece)
        return seen.results()

    async def read_some(prompt, num: int) -> None:
        stream = llm.astream(prompt, LONG)
        async for _ in stream:
            num -= 1
            if num < 0:
                break  # the generator is left to the loop's own finalizer

    others = [
        asyncio.ensure_future(read_some(rng.choice(prompts), rng.choice((0, 2, 99)))) for _ in range(rng.randint(0, 3))
    ]
    mine = [asyncio.ensure_future(read(*each)) for each in zip(prompts, params, drafting, strict=True)]
    for other in others:
        for _ in range(rng.randint(0, 5)):
            await asyncio.sleep(0)
        other.cancel()
    results = await asyncio.gather(*mine)
    await asyncio.gather(*others, return_exceptions=True)
    return [result for some in results for result in some]


def _threads(llm, prompts, params, drafting, rng) -> list[Result]:
    """A thread a prompt, and one that opens streams and loses them in cycles."""
    found: list[list[Result] | BaseException | None] = [None] * len(prompts)
    num_dropped = rng.randint(0, 3)
    seeds = [rng.random() for _ in range(num_dropped)]

    def run(place: int, style: Ask) -> None:
        part = slice(place, place + 1)
        try:
            found[place] = style(llm, prompts[part], params[part], drafting[part], rng)
        except BaseException as error:  # told to the caller below
            found[place] = error

    def lose() -> None:
        for seed in seeds:
            own = random.Random(seed)
            _drop(llm.stream(own.choice(prompts), LONG), own)

    styles = [rng.choice((_generate, _one_by_one)) for _ in prompts]
    threads = [threading.Thread(target=run, args=(i, style), daemon=True) for i, style in enumerate(styles)]
    threads.append(threading.Thread(target=lose, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), "a caller's thread did not end"
    for some in found:
        if isinstance(some, BaseException):
            raise some
    return [result for some in found for result in some or ()]


def _interrupted(llm, prompts, params, drafting, rng) -> list[Result]:
    """Ctrl-C at some moment of a call, and another call at once."""
    timer = threading.Timer(rng.uniform(0.0, 0.03), _thread.interrupt_main)
    with _ctrl_c_raises():
        try:
            timer.start()
            llm.generate(list(prompts), LONG)
            timer.join()
            time.sleep(0.05)  # the signal is delivered here at the latest
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the interruption was swallowed")
    return _generate(llm, prompts, params, drafting, rng)


@contextlib.contextmanager
def _ctrl_c_raises() -> Iterator[None]:
    """Ctrl-C as in a terminal: a shell starts what runs in the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _eager_collector() -> Iterator[None]:
    """Collections every few allocations: also in the middle of a pass, on whichever thread runs then."""
    before = gc.get_threshold()
    gc.set_threshold(40, 3, 3)
    try:
        yield
    finally:
        gc.set_threshold(*before)


STYLES: dict[str, Ask] = {
    "generate": _generate,
    "iterate": _iterate,
    "as_completed": _as_completed,
    "one by one": _one_by_one,
    "interleaved": _interleaved,
    "astream": _astream,
    "threads": _threads,
    "interrupted": _interrupted,
}
DISTURBED = ("interleaved", "astream", "threads", "interrupted")
