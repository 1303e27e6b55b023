"""The mixer: its chances are those that come true, also after the text has changed, and nothing drives it out of bounds."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from foreword.draft.memory.mixer import CELL_BITS, CELLS, NUM_SETS, NUM_SOURCES, Mixer

Event = tuple[int, tuple[int, ...], float]  # set of weights, evidence, the true chance


def cell(source: int, firmness: int) -> int:
    return (source << CELL_BITS) + firmness


def run(mixer: Mixer, draw: Callable[[random.Random], Event], num: int, seed: int) -> list[tuple[float, bool, float]]:
    """(stated, hit, true chance) of simulated candidates, the mixer learning from each."""
    rng, seen = random.Random(seed), []
    for _ in range(num):
        which, evidence, true = draw(rng)
        hit, stated = rng.random() < true, mixer.chance(which, evidence)
        mixer.learn(which, evidence, stated, hit)
        seen.append((stated, hit, true))
    return seen


def reliability_error(seen: list[tuple[float, bool, float]], bins: int = 10) -> float:
    """Mean distance between stated chance and share of hits, over bins of stated chance, weighted by their size."""
    stated, hits = np.asarray([s for s, _, _ in seen]), np.asarray([h for _, h, _ in seen], dtype=float)
    place = np.minimum((stated * bins).astype(int), bins - 1)
    return sum(abs(stated[place == b].sum() - hits[place == b].sum()) for b in range(bins)) / len(seen)


def boastful(rng: random.Random) -> Event:
    """One source says everything firmly and is right in every fifth case."""
    return 0, (cell(4, rng.randrange(25, CELLS)),), 0.2


def independent(rng: random.Random) -> Event:
    """Two sources, each of which knows something that the other does not."""
    a, b = rng.randrange(1, CELLS), rng.randrange(1, CELLS)
    true = 1 / (1 + math.exp(-(0.15 * (a - 16) + 0.15 * (b - 16))))
    return 3, (cell(0, a), cell(5, b)), true


def repeated(rng: random.Random) -> Event:
    """Four sources that all say what the first one says: together they know no more than it."""
    a = rng.randrange(1, CELLS)
    return 8, tuple(cell(source, a) for source in range(4)), a / CELLS


def contrary(rng: random.Random) -> Event:
    """What a source names is wrong, what it does not name may come."""
    named = rng.random() < 0.5
    return 5, (cell(2, 20 if named else 0), cell(4, 10)), 0.05 if named else 0.6


STREAMS = {"boastful": boastful, "independent": independent, "repeated": repeated, "contrary": contrary}


@pytest.mark.parametrize("name", STREAMS)
def test_stated_chances_come_true(name):
    seen = run(Mixer(), STREAMS[name], 6000, 1)
    assert reliability_error(seen[1000:]) < 0.03
    assert np.mean([abs(stated - true) for stated, _, true in seen[3000:]]) < 0.08


def test_two_sources_together_say_more_than_one():
    """By the mean log-loss of the chances."""

    def loss(seen):
        return -np.mean([math.log(stated if hit else 1 - stated) for stated, hit, _ in seen[2000:]])

    both = loss(run(Mixer(), independent, 6000, 2))

    def alone(rng):
        which, evidence, true = independent(rng)
        return which, evidence[:1], true

    assert both < loss(run(Mixer(), alone, 6000, 2)) - 0.05


def test_after_a_switch_the_chances_come_true_again():
    """A source that was right nine times of ten is wrong nine times of ten from one moment on, and back again."""
    mixer, evidence = Mixer(), (cell(0, 30), cell(4, 15))
    run(mixer, lambda rng: (8, evidence, 0.9), 2000, 3)
    assert mixer.chance(8, evidence) == pytest.approx(0.9, abs=0.05)
    for true in (0.1, 0.9):
        run(mixer, lambda rng, true=true: (8, evidence, true), 400, 4)
        assert mixer.chance(8, evidence) == pytest.approx(true, abs=0.2), "within an answer or two"
        later = run(mixer, lambda rng, true=true: (8, evidence, true), 1500, 5)
        assert reliability_error(later[500:]) < 0.05


@pytest.mark.parametrize("hits", ["always", "never", "in turn", "against what is stated"])
def test_nothing_drives_it_out_of_bounds(hits):
    mixer, rng = Mixer(), random.Random(6)
    everything = [[cell(source, firmness) for source in range(NUM_SOURCES)] for firmness in (0, 1, CELLS - 1)]
    for step in range(20_000):
        evidence, which = rng.choice(everything), rng.randrange(NUM_SETS)
        stated = mixer.chance(which, evidence)
        assert 0 < stated < 1
        hit = {"always": True, "never": False, "in turn": step % 2 == 0, "against what is stated": stated < 0.5}[hits]
        mixer.learn(which, evidence, stated, hit)
    assert np.isfinite(mixer.state).all()
    assert np.abs(mixer.state).max() <= 200
    run(mixer, boastful, 3000, 7)
    assert mixer.chance(0, (cell(4, 28),)) == pytest.approx(0.2, abs=0.12), "it learns on from wherever it was driven"


def test_without_evidence_or_learning_there_is_a_chance():
    mixer = Mixer()
    assert mixer.chance(0, ()) == 0.5
    firm, weak, other = (mixer.chance(0, (cell(4, firmness),)) for firmness in (30, 2, 0))
    assert firm > weak > other


def test_its_state_goes_on_where_it_was():
    mixer, again = Mixer(), Mixer()
    run(mixer, independent, 500, 8)
    again.state = mixer.state
    assert run(again, independent, 200, 9) == run(mixer, independent, 200, 9)


@pytest.mark.parametrize("wrong", ["nan", "inf", "short"])
def test_a_state_that_is_none_is_refused(wrong):
    mixer = Mixer()
    state = (
        mixer.state[:-1] if wrong == "short" else np.where(np.arange(len(mixer.state)) == 7, float(wrong), mixer.state)
    )
    with pytest.raises(ValueError, match="numbers"):
        mixer.state = state
    mixer.state = np.full_like(mixer.state, 1e300)
    assert 0 < mixer.chance(0, [cell(source, 31) for source in range(NUM_SOURCES)]) < 1


def test_what_it_begins_with_is_whole_and_sensible():
    """Numbers learned over recorded answers: `benchmarks.mixer_prior`."""
    mixer = Mixer()
    assert len(mixer.state) == NUM_SETS * NUM_SOURCES + NUM_SETS + 2 * NUM_SOURCES * CELLS
    assert np.isfinite(mixer.state).all()
    for source in range(4):  # the store: the only continuation, seen once, twice, four times, ever so often
        odds = [mixer.log_odds(cell(source, firmness)) for firmness in (20, 23, 27, 31)]
        assert odds == sorted(odds)
        assert mixer.log_odds(cell(source, 0)) < 0 < mixer.log_odds(cell(source, 31))
