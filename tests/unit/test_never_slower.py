"""The bound in a whole engine on a clock that only passes and proposals move: no noise, so the figures are exact.

`benchmarks/never_slower.py` is the same on a real model and a real clock.
"""

import random
from types import SimpleNamespace

import pytest

from benchmarks import never_slower
from benchmarks.never_slower import WrongDrafter, in_turn, never_said, random_words
from foreword.adapt.controller import AdaptiveController
from foreword.adapt.cost_model import PassCosts
from foreword.bench.intervals import ratio_of, ratio_of_rates
from foreword.draft.base import BaseDrafter, DraftNeed, known_ids
from foreword.draft.lookup.recycling import RecyclingDrafter
from foreword.draft.lookup.suffix import SuffixDrafter, SuffixOptions
from foreword.draft.none import NoDrafter
from foreword.engine.engine import Engine
from foreword.engine.fixed_policy import FixedController
from foreword.engine.step import StepParts
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.tree.draft_tree import DraftTree
from foreword.verify.base import Matching
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import run
from tests.support.toy_llm import ScriptDecoder, byte_tokenizer, toy_llm

pytestmark = pytest.mark.usefixtures("without_shape_checks")  # some 20,000 passes of a toy model

MS = 1e-3
WIDTHS, BASE, SLOPE = [1, 2, 4, 8, 16, 32], [6.8 * MS, 7.5 * MS, 8.6 * MS, 11 * MS, 15.6 * MS, 25 * MS], [1e-6] * 6
VOCAB, NUM_NODES, HOST_S = 60, 16, 0.4 * MS
WRONG_TOKEN = VOCAB - 1  # that the decoder cannot say


class Clock:
    """Time as the test sets it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


def costs() -> PassCosts:
    return PassCosts(list(WIDTHS), list(BASE), list(SLOPE))


class TimedTarget(Target):
    """Its passes take what the figures say, with some noise."""

    def __init__(self, decoder, clock, seed) -> None:
        super().__init__(decoder)
        self.clock, self.truth, self.rng = clock, costs(), random.Random(seed)

    def forward(self, batch, need):
        sizes = [b - a for a, b in zip(batch.starts, batch.starts[1:], strict=False)]
        self.clock.now_s += HOST_S + self.truth.seconds(sizes, batch.kv_lens) * self.rng.uniform(0.97, 1.03)
        return super().forward(batch, need)


class TimedDrafter:
    """Another drafter, whose proposals take time."""

    def __init__(self, inner, clock, draft_s) -> None:
        self._inner, self.clock, self.draft_s = inner, clock, draft_s

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def propose(self, requests, plans):
        if any(plan.num_nodes for plan in plans):
            self.clock.now_s += self.draft_s
        return self._inner.propose(requests, plans)


class NoWrongToken(ToyDecoder):
    """Never says `WRONG_TOKEN`."""

    def logits_after(self, tokens, position):
        row = super().logits_after(tokens, position)
        row[WRONG_TOKEN] = -1e9
        return row


class SlowPlanner(AdaptiveController):
    """Takes time to plan, and to learn from a step for which a drafter was asked."""

    def __init__(self, clock, planning_s) -> None:
        super().__init__(costs(), NUM_NODES, "toy")
        self.clock, self.planning_s = clock, planning_s

    def _plan(self, *args):
        self.clock.now_s += self.planning_s / 2
        return super()._plan(*args)

    def _learn(self, requests, past):
        was_asked = past.record.plans[0].num_nodes > 0
        self.clock.now_s += self.planning_s / 2 if was_asked else 0.0
        super()._learn(requests, past)


def seconds(decoder, drafter, make_controller, prompts, params, draft_s=0.0, batch_size=1, planning_s=0.0) -> float:
    """Simulated time of all prompts; the answers are the same whatever drafts (`run` checks that they end)."""
    clock = Clock()
    parts = StepParts(
        SlowPlanner(clock, planning_s) if planning_s else make_controller(),
        TimedDrafter(drafter, clock, draft_s),
        TimedTarget(decoder, clock, seed=len(prompts)),
        Matching(),
    )
    run(Engine(parts, batch_size, now_s=clock.perf_counter), prompts, params)
    return clock.now_s


def ratio(decoder, drafter, prompts, params, **options) -> float:
    """Plain time over adaptive time."""
    plain = seconds(
        decoder,
        NoDrafter(),
        lambda: FixedController(0, "none"),
        prompts,
        params,
        batch_size=options.get("batch_size", 1),
    )
    return plain / seconds(
        decoder, drafter, lambda: AdaptiveController(costs(), NUM_NODES, "toy"), prompts, params, **options
    )


def suffix() -> SuffixDrafter:
    return SuffixDrafter(SuffixOptions(), VOCAB)


def prompts(count: int, length: int = 24) -> list[list[int]]:
    rng = random.Random(2)
    return [[rng.randrange(VOCAB - 1) for _ in range(length)] for _ in range(count)]


def ask(count: int, max_tokens: int, **options) -> list[SamplingParams]:
    return [SamplingParams(max_tokens=max_tokens, seed=i, **options) for i in range(count)]


@pytest.mark.parametrize("draft_s", [0.15 * MS, 0.8 * MS, 3 * MS])
@pytest.mark.parametrize(("count", "max_tokens", "batch_size"), [(2, 80, 1), (10, 12, 1), (4, 44, 4)])
def test_an_always_wrong_drafter(draft_s, count, max_tokens, batch_size):
    asked = ask(count, max_tokens)
    found = ratio(
        NoWrongToken(VOCAB),
        WrongDrafter(WRONG_TOKEN),
        prompts(count),
        asked,
        draft_s=draft_s,
        batch_size=batch_size,
    )
    assert found >= 0.98


def test_the_same_drafter_unbounded_is_slow():
    """So that the bound is what keeps the others fast."""
    asked, decoder = ask(2, 60), NoWrongToken(VOCAB)
    plain = seconds(decoder, NoDrafter(), lambda: FixedController(0, "none"), prompts(2), asked)
    fixed = seconds(decoder, WrongDrafter(WRONG_TOKEN), lambda: FixedController(8, "toy"), prompts(2), asked)
    assert plain / fixed < 0.75


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5}], ids=["greedy", "hot"])
def test_texts_without_repetition(options):
    found = ratio(ToyDecoder(VOCAB), suffix(), prompts(3), ask(3, 60, **options), draft_s=0.15 * MS)
    assert found >= 0.98


def test_what_the_controller_takes_itself_is_charged():
    """Some 4 % of a plain step for each that is planned: that is paid from the same budget as drafts."""
    for drafter, draft_s in ((suffix(), 0.03 * MS), (WrongDrafter(WRONG_TOKEN), 0.5 * MS)):
        found = ratio(NoWrongToken(VOCAB), drafter, prompts(2), ask(2, 200), draft_s=draft_s, planning_s=0.3 * MS)
        assert found >= 0.98


def test_one_lucky_text_does_not_pay_for_ruin():
    """What others saved lets the next requests try a little more, 32 plain steps in all; then each is within 2 % again."""
    controller = AdaptiveController(costs(), NUM_NODES, "toy")
    asked, decoder = ask(1, 250), NoWrongToken(VOCAB)
    looping = ScriptDecoder([7, 8, 9, 10], VOCAB)
    lucky = seconds(looping, suffix(), lambda: controller, prompts(1), asked)
    plain_lucky = seconds(looping, NoDrafter(), lambda: FixedController(0, "none"), prompts(1), asked)
    assert plain_lucky / lucky > 2.5
    ratios, lost_s = [], 0.0
    for number in range(24):
        asked = ask(1, 80 + number)
        plain = seconds(decoder, NoDrafter(), lambda: FixedController(0, "none"), prompts(1), asked)
        wrong = seconds(decoder, WrongDrafter(WRONG_TOKEN), lambda: controller, prompts(1), asked, 0.15 * MS)
        ratios.append(plain / wrong)
        lost_s += wrong - 1.02 * plain
    assert min(ratios) >= 0.96
    assert lost_s <= 32 * (BASE[0] + HOST_S)
    assert min(ratios[-4:]) >= 0.98


def test_unlucky_texts_do_not_end_drafting_for_the_next_ones():
    """However much wrong guesses have lost: a text that repeats itself finds that out by the little that is its own."""
    controller, asked = AdaptiveController(costs(), NUM_NODES, "toy"), ask(1, 96)
    for _ in range(3):
        seconds(NoWrongToken(VOCAB), WrongDrafter(WRONG_TOKEN), lambda: controller, prompts(1), asked)
    everyone = controller.overall
    everyone.saved_s -= 0.05 * everyone.taken_s
    assert everyone.left_s(64 * BASE[0]) < 0
    looping = ScriptDecoder([7, 8, 9, 10, 11, 12], VOCAB)
    plain = seconds(looping, NoDrafter(), lambda: FixedController(0, "none"), prompts(1), asked)
    found = seconds(looping, suffix(), lambda: controller, prompts(1), asked)
    assert plain / found > 1.5


def test_many_short_hopeless_texts_stay_within_the_bound_together():
    """What is each request's own adds up: half a percent of all."""
    found = ratio(NoWrongToken(VOCAB), WrongDrafter(WRONG_TOKEN), prompts(20), ask(20, 24), draft_s=0.05 * MS)
    assert found >= 0.98


def copying_script(num_phrases: int = 40) -> list[int]:
    """Phrases that come back, in changing order, with new words in between."""
    rng = random.Random(8)
    phrases = [[rng.randrange(VOCAB) for _ in range(rng.randint(8, 16))] for _ in range(4)]
    script: list[int] = []
    for _ in range(num_phrases):
        script += rng.choice(phrases) + [rng.randrange(VOCAB) for _ in range(rng.randint(0, 2))]
    return script


def test_where_copying_pays_it_is_as_fast_as_the_best_fixed_size():
    """Once one answer has shown what guesses are worth; that one pays for finding out."""
    decoder, asked = ScriptDecoder(copying_script(), VOCAB), ask(2, 160)
    draft_s = 0.15 * MS
    fixed = [
        seconds(decoder, suffix(), lambda n=n: FixedController(n, "suffix"), prompts(2), asked, draft_s)
        for n in (4, 7, 16)
    ]
    controller, drafter = AdaptiveController(costs(), NUM_NODES, "auto"), suffix()
    first = seconds(decoder, drafter, lambda: controller, prompts(1), asked[:1], draft_s)
    adaptive = seconds(decoder, drafter, lambda: controller, prompts(2), asked, draft_s)
    plain = seconds(decoder, NoDrafter(), lambda: FixedController(0, "none"), prompts(2), asked)
    assert plain / min(fixed) > 1.5, "copying does pay here"
    assert min(fixed) / adaptive >= 0.97
    assert plain / 2 / first > 1.2


def test_while_off_the_drafter_is_not_asked():
    """An overdrawn request's steps cost what plain ones cost: every plan is empty, so nothing is proposed."""
    clock, controller = Clock(), AdaptiveController(costs(), NUM_NODES, "toy")
    drafter = TimedDrafter(WrongDrafter(WRONG_TOKEN), clock, 3 * MS)
    asked = 0

    def propose(requests, plans, inner=drafter.propose):
        nonlocal asked
        asked += any(plan.num_nodes for plan in plans)
        return inner(requests, plans)

    drafter.propose = propose
    parts = StepParts(controller, drafter, TimedTarget(NoWrongToken(VOCAB), clock, 1), Matching())
    engine = Engine(parts, 1, now_s=clock.perf_counter)
    run(engine, prompts(1), ask(1, 200))
    assert engine.stats.num_steps > 190
    assert asked <= 8
    assert engine.stats.draft_s == pytest.approx(asked * 3 * MS)


@pytest.mark.parametrize("num_nodes", [0, 4])
def test_while_off_a_pass_is_asked_for_nothing_more(num_nodes):
    """Token Recycling wants the most probable tokens of every node: of prompts always, of decoding passes while it drafts."""
    target, wanted = Target(ToyDecoder(VOCAB)), []
    forward = target.forward
    target.forward = lambda batch, need: wanted.append((batch.num_nodes, need.top_k)) or forward(batch, need)
    parts = StepParts(FixedController(num_nodes, "recycling"), RecyclingDrafter(VOCAB), target, Matching())
    run(Engine(parts, 1), prompts(1), ask(1, 12))
    assert wanted[0] == (24, 8)
    decoding = {top_k for _, top_k in wanted[1:-1]}
    assert decoding == ({8} if num_nodes else {0})


def test_the_benchmarks_parts():
    assert len(set(random_words(5, 8, seed=1))) == 5
    said = [3, 0, 1]
    plain = SimpleNamespace(
        generate=lambda asked, _: [SimpleNamespace(token_ids=said)],
        model=SimpleNamespace(checkpoint=SimpleNamespace(spec=SimpleNamespace(vocab_size=8))),
    )
    assert never_said(plain, [[1]], SamplingParams()) == 2


def test_the_interval_of_a_ratio_covers_it():
    rng = random.Random(4)
    covered = 0
    for seed in range(60):
        pairs = [(t * rng.gauss(1.3, 0.1), t) for t in (rng.uniform(0.5, 2.0) for _ in range(20))]
        found = ratio_of(pairs, seed)
        assert found.low <= found.value <= found.high
        covered += found.low <= 1.3 <= found.high
    assert covered >= 51, "95 % intervals"
    alone = ratio_of([(2.0, 1.0)])
    assert (alone.value, alone.low, alone.high) == (2.0, 0.0, float("inf"))
    pairs = [(3.0, 2.0), (1.0, 1.0), (5.0, 2.5)]
    both = ratio_of_rates([1.0] * 3, [p for _, p in pairs], [1.0] * 3, [p for p, _ in pairs])
    assert (both.low, both.high) == (ratio_of(pairs).low, ratio_of(pairs).high), "the same drawings everywhere"


class Seeing(BaseDrafter):
    """Reads the target's states: it can guess only after a pass that it has seen. Its guesses are good in the end."""

    def __init__(self, script, num_useless) -> None:
        self.script, self.num_useless, self.asked, self._seen = script, num_useless, [], -1
        self.need, self.name = DraftNeed(hidden=False, can_miss=True), "eagle3"

    def start(self, request): ...

    def stop(self, request): ...

    def observe(self, requests, *_):
        self._seen = len(requests[0].token_ids)

    def propose(self, requests, plans):
        (request,), (plan,) = requests, plans
        known = known_ids(request, plan)
        if not plan.num_nodes:
            return [DraftTree.chain(known)]
        self.asked.append(can_guess := self._seen == len(request.token_ids))
        num_done = len(request.token_ids)
        if not can_guess or len(self.asked) <= self.num_useless:
            return [DraftTree.chain(known)]
        return [DraftTree.chain(known, [self.script[(num_done - 1 + i) % len(self.script)] for i in range(3)])]


def test_who_needs_to_see_a_pass_is_asked_again_after_it():
    """A question after steps that it has not seen brings nothing, and that says nothing: the next one does."""
    script = [3, 1, 4, 1, 5, 9, 2, 6]
    clock = Clock()
    controller = AdaptiveController(costs(), NUM_NODES, "eagle3")
    drafter = Seeing(script, num_useless=20)
    parts = StepParts(controller, drafter, TimedTarget(ScriptDecoder(script, VOCAB), clock, 1), Matching())
    engine = Engine(parts, 1, now_s=clock.perf_counter)
    (request,) = run(engine, prompts(1, 8), ask(1, 200))
    blind = [i for i, can_guess in enumerate(drafter.asked) if not can_guess]
    assert len(blind) >= 2, "it does rest"
    assert all(drafter.asked[i + 1] for i in blind if i + 1 < len(drafter.asked)), "and is asked twice then"
    assert request.stats.accepted_tokens > 60, "so it comes back"


def test_two_engines_take_their_steps_in_turn(monkeypatch):
    """An engine's thread runs by itself: read as a stream, one answered while the other was being timed."""
    tokenizer = byte_tokenizer("hello")
    llms = [toy_llm(ToyDecoder(vocab_size=tokenizer.vocab_size), tokenizer, drafter="none") for _ in range(2)]
    steps, real = [], never_slower.timed_step
    monkeypatch.setattr(never_slower, "timed_step", lambda llm: steps.append(llms.index(llm)) or real(llm))
    seconds, answers = in_turn(llms, [1, 2], SamplingParams(max_tokens=6, ignore_eos=True), first=1)
    assert steps == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert all(time > 0 for time in seconds)
    assert answers[0].token_ids == answers[1].token_ids
    assert len(answers[0].token_ids) == 6
