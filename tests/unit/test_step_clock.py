"""A step stamps its phases on a clock whose time the test sets; whoever watches an engine stands beside it, not between its parts."""

import pytest

from foreword.bench.watch import Watch
from foreword.draft.none import NoDrafter
from foreword.engine.engine import Engine
from foreword.engine.fixed_policy import FixedController
from foreword.engine.step import StepParts
from foreword.engine.step_clock import StepClock, StepTimes
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.verify.base import Matching
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import run

TAKES = {
    "plan": 1.0,
    "propose": 2.0,
    "fit": 4.0,
    "forward": 8.0,
    "decide": 16.0,
    "commit": 32.0,
    "see": 64.0,
    "learn": 128.0,
}
OF_A_STEP = sum(TAKES.values()) - TAKES["learn"]


class SetTime:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def slow(kind, calls, time):
    """A class whose calls take what `TAKES` says."""

    def slowed(name, inner):
        def call(self, *args):
            time.now_s += TAKES[name]
            return inner(self, *args)

        return call

    return type(
        f"Slow{kind.__name__}", (kind,), {call: slowed(name, getattr(kind, call)) for call, name in calls.items()}
    )


@pytest.fixture
def watched():
    """An engine whose phases take what `TAKES` says, and all that its observer was told."""
    time = SetTime()
    controller = slow(FixedController, {"plan": "plan", "fit": "fit", "observe": "learn"}, time)(0, "none")
    drafter = slow(NoDrafter, {"propose": "propose", "observe": "see"}, time)()
    target = slow(Target, {"forward": "forward", "commit": "commit"}, time)(ToyDecoder())
    parts = StepParts(controller, drafter, target, slow(Matching, {"decide": "decide"}, time)())
    engine, told = Engine(parts, 1, now_s=time), []
    engine.observers.append(lambda record, times: told.append((record, times)))
    return engine, parts, told, time


def ask(engine, max_tokens=5):
    return run(engine, [[1, 2, 3]], [SamplingParams(max_tokens=max_tokens)])


def test_every_phase_has_its_own_time(watched):
    engine, _, told, _ = watched
    ask(engine)
    assert told[1][1] == StepTimes(
        plan_s=1.0, draft_s=2.0, fit_s=4.0, target_s=8.0, verify_s=16.0, commit_s=32.0, observe_s=64.0, learn_s=128.0
    )
    assert (told[0][1].learn_s, told[1][1].learn_s) == (0.0, 128.0), "of the step before"
    assert told[1][1].total_s == OF_A_STEP
    assert (told[1][1].drafter_s, told[1][1].planning_s, told[1][1].host_s) == (66.0, 5.0, 48.0)


def test_an_engine_counts_where_its_time_went(watched):
    engine, _, told, _ = watched
    ask(engine)
    stats = engine.stats
    assert stats.num_steps == len(told) == 5
    assert (stats.total_s, stats.draft_s, stats.target_s) == (5 * OF_A_STEP, 5 * 66.0, 5 * 8.0)
    assert stats.host_s == 5 * 53.0, "planning too"


def test_nothing_stands_between_the_parts(watched):
    engine, parts, _, _ = watched
    ask(engine)
    assert engine.parts is parts
    assert type(engine.parts.target).__mro__[1] is Target


def test_a_watch_counts_decoding_from_the_end_of_the_step_before(watched):
    engine, _, _, time = watched
    watch = Watch(engine.clock.now_s)
    engine.observers.append(watch)
    ask(engine)
    found = watch.times
    assert found.prefill_s == OF_A_STEP + TAKES["learn"]
    assert found.decode_s == 4 * found.prefill_s == time.now_s - found.prefill_s
    assert (found.num_passes, found.num_nodes, found.decode_tokens) == (4, 4, 4)
    assert (found.draft_s, found.target_s) == (4 * 66.0, 4 * 8.0)
    watch.restart()
    assert watch.times.decode_s == 0.0


def test_a_clock_counts_from_its_last_stamp():
    time = SetTime()
    clock = StepClock(time)
    time.now_s = 5.0
    clock.start()
    time.now_s = 7.0
    clock.stamp("plan")
    assert clock.times() == StepTimes(plan_s=2.0)
