"""The memory's table: what it says after a context, how it forgets, and that it stays as large as it is."""

import random

import numpy as np
import pytest

from foreword.draft.memory.store import LEAST_BYTES, MemoryStore, context_hashes, merged
from foreword.errors import ConfigError

VOCAB_SIZE = 1000


def store(num_bytes: int = 1 << 20) -> MemoryStore:
    return MemoryStore(num_bytes, VOCAB_SIZE)


def said(made: MemoryStore, *context: int) -> dict[int, int]:
    """Token -> strength after the whole context."""
    return dict(made.after(context_hashes(context)[-1]))


def test_what_followed_contexts_of_two_to_five_tokens_is_known():
    made = store()
    made.learn([1, 2, 3, 4, 5, 6], 2)
    for context, token in [
        ((1, 2), 3),
        ((2, 3), 4),
        ((1, 2, 3), 4),
        ((1, 2, 3, 4), 5),
        ((1, 2, 3, 4, 5), 6),
        ((4, 5), 6),
    ]:
        assert said(made, *context) == {token: 64}
    assert said(made, 5, 6) == said(made, 3, 2) == {}


def test_tokens_before_the_first_are_context_alone():
    made = store()
    made.learn([1, 2, 3, 4, 5], 4)
    assert said(made, 1, 2) == said(made, 2, 3) == {}
    assert said(made, 3, 4) == said(made, 1, 2, 3, 4) == {5: 64}


def test_a_continuation_grows_with_use_and_fades_where_another_comes():
    made = store()
    strengths = []
    for _ in range(30):
        made.learn([1, 2, 3], 2)
        strengths.append(said(made, 1, 2)[3])
    assert strengths == sorted(strengths)
    assert strengths[3] == 174
    assert 250 <= strengths[-1] <= 255
    made.learn([1, 2, 4], 2)
    assert said(made, 1, 2)[4] == 64
    assert said(made, 1, 2)[3] < strengths[-1]
    for _ in range(12):
        made.learn([1, 2, 4], 2)
    after = said(made, 1, 2)
    assert after[4] > 200 > 40 > after[3], "the newer habit has won"


def test_a_fourth_continuation_takes_the_place_of_the_weakest():
    made = store()
    for token in (3, 3, 3, 3, 3, 4, 4, 5, 6):
        made.learn([1, 2, token], 2)
    assert set(said(made, 1, 2)) == {3, 4, 6}


def test_the_table_stays_as_large_as_it_is_and_keeps_what_is_in_use():
    made, rng = store(LEAST_BYTES), random.Random(1)
    num_bytes, habit = made.rows.nbytes, [11, 12, 13, 14]
    for _ in range(300):
        made.learn(habit, 2)
        made.learn([rng.randrange(VOCAB_SIZE) for _ in range(60)], 2)
    assert made.rows.nbytes == num_bytes == LEAST_BYTES
    assert 0.9 * len(made.rows) < made.num_contexts <= len(made.rows)
    assert said(made, 11, 12)[13] > 200
    assert said(made, 12, 13)[14] > 200


def test_what_is_not_used_makes_way():
    made, rng = store(LEAST_BYTES), random.Random(2)
    for _ in range(3):
        made.learn([11, 12, 13, 14], 2)
    for _ in range(900):
        made.learn([rng.randrange(VOCAB_SIZE) for _ in range(60)], 2)
    assert said(made, 11, 12) == {}
    assert all(0 <= token < VOCAB_SIZE for token in (made.rows[:, 1:] >> 8).ravel())


@pytest.mark.parametrize("num_bytes", [LEAST_BYTES, 100_000, 1 << 20])
def test_a_size_is_rounded_down_to_a_power_of_two(num_bytes):
    assert num_bytes / 2 < MemoryStore(num_bytes, VOCAB_SIZE).rows.nbytes <= num_bytes


def test_cleared_it_knows_nothing():
    made = store()
    made.learn(list(range(100)), 0)
    made.clear()
    assert made.num_contexts == 0
    assert not made.rows.any()


def test_two_tables_merged_know_what_either_knew_best():
    ours, theirs = store(), store()
    for _ in range(5):
        ours.learn([1, 2, 3], 2)
        theirs.learn([7, 8, 9], 2)
    theirs.learn([1, 2, 4], 2)
    both = store()
    both.rows[:] = merged(ours.rows, theirs.rows)
    assert said(both, 7, 8) == said(theirs, 7, 8)
    assert said(both, 1, 2) == said(ours, 1, 2)
    assert np.array_equal(merged(ours.rows, ours.rows), ours.rows)


def test_the_largest_token_ids_fit_and_larger_vocabularies_are_refused():
    made = MemoryStore(LEAST_BYTES, 1 << 24)
    made.learn([(1 << 24) - 1] * 4, 2)
    assert said(made, (1 << 24) - 1, (1 << 24) - 1) == {(1 << 24) - 1: 64 + ((255 - 64) >> 2)}
    with pytest.raises(ConfigError, match="token ids below 16777216"):
        MemoryStore(LEAST_BYTES, (1 << 24) + 1)
