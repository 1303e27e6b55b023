"""Prompt lookup: what it copies, and at what cost."""

import random

import pytest

from foreword.draft.lookup.ngram import NgramIndex, NgramOptions
from foreword.errors import ConfigError
from tests.support.counted import lines_run


def slow_continuation(token_ids, length, longest=3, shortest=1):
    """The definition, by scanning: the most recent earlier end of the longest suffix that occurs before."""
    for n in range(longest, shortest - 1, -1):
        suffix = token_ids[-n:]
        if len(suffix) < n:
            continue
        for end in range(len(token_ids) - 1, n - 1, -1):
            if token_ids[end - n : end] == suffix:
                copied = list(token_ids)
                for i in range(length):
                    copied.append(copied[end + i])
                return copied[len(token_ids) :]
    return []


@pytest.mark.parametrize("seed", range(30))
def test_the_incremental_index_equals_a_scan(seed):
    rng = random.Random(seed)
    tokens = [rng.randrange(rng.choice([2, 5, 40])) for _ in range(rng.randrange(1, 12))]
    index = NgramIndex(3, 1)
    for _ in range(60):
        assert index.continuation(tokens, 6) == slow_continuation(tokens, 6)
        tokens.extend(rng.randrange(5) for _ in range(rng.randrange(4)))


def test_the_longest_match_wins_then_the_most_recent():
    index = NgramIndex(3, 1)
    #               longest match of (1, 2, 3) is here ↓        a later match of (3) alone ↓
    assert index.continuation([1, 2, 3, 7, 7, 0, 9, 3, 8, 8, 1, 2, 3], 2) == [7, 7]
    assert NgramIndex(3, 1).continuation([5, 1, 6, 5, 2, 6, 5], 1) == [2]


def test_a_loop_is_drafted_to_full_length():
    assert NgramIndex(3, 1).continuation([4, 1, 2, 1, 2], 7) == [1, 2, 1, 2, 1, 2, 1]


def test_nothing_matches_in_a_short_or_fresh_text():
    assert NgramIndex(3, 1).continuation([1], 5) == []
    assert NgramIndex(3, 1).continuation([1, 2, 3], 5) == []
    assert NgramIndex(3, 2).continuation([1, 2, 1], 5) == []  # only one token matches, two are asked for


def test_a_proposal_costs_the_same_in_a_long_text():
    """[R65]: no more lines run after a hundred thousand tokens of history than after a thousand."""
    rng = random.Random(0)
    lines = []
    for length in (1000, 100_000):
        tokens = [rng.randrange(50) for _ in range(length)]
        index = NgramIndex(3, 1)
        index.continuation(tokens, 8)

        def propose(tokens=tokens, index=index) -> None:
            for _ in range(200):
                tokens.append(rng.randrange(50))
                index.continuation(tokens, 8)

        lines.append(lines_run(propose) / 200)
    assert lines[1] < 1.5 * lines[0], lines
    assert lines[1] < 100, lines


def test_wrong_sizes_are_refused():
    with pytest.raises(ConfigError, match="prompt_lookup_min is 4 and prompt_lookup_max 3"):
        NgramOptions(prompt_lookup_min=4)
    with pytest.raises(ConfigError, match="prompt_lookup_min is 0; allowed: a whole number, 1 to 32"):
        NgramOptions(prompt_lookup_min=0)
