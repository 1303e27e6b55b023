"""The number of threads that is found by racing: no more than help, and none learned from noise."""

import json

import pytest

from foreword.runtime.cpu_cores import Core
from foreword.runtime.thread_choice import fewest_that_suffice, keep_choice, kept_choice, numbers_to_try


def race_of(seconds):
    """Races by known times."""
    return lambda first, second: [seconds[second] / seconds[first]] * 3


@pytest.mark.parametrize(
    ("kinds", "most", "expected"),
    [
        ("", 1, [1]),
        ("", 2, [2, 1]),
        ("", 6, [6, 3, 1]),
        ("", 16, [16, 8, 4, 2, 1]),
        ("PPPPPPEEEEEEEE", 14, [14, 7, 6, 3, 1]),
        ("PPPPEEEE", 8, [8, 4, 2, 1]),
        ("PPPPEEEE", 3, [3, 1]),  # a container's quota allows fewer than the fast cores
    ],
)
def test_all_cores_then_the_fast_ones_then_halves(kinds, most, expected):
    cores = [Core((i,), kind) for i, kind in enumerate(kinds)] or [Core((i,)) for i in range(most)]
    assert numbers_to_try(cores, most) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({16: 1.0, 8: 1.9, 4: 3.7, 2: 7.0, 1: 14.0}, 16),  # every core helps
        ({16: 1.0, 8: 0.99, 4: 1.2, 2: 2.0, 1: 4.0}, 8),  # memory is the limit
        ({16: 1.0, 8: 0.8, 4: 0.75, 2: 1.1, 1: 2.0}, 4),
        ({16: 1.0, 8: 1.01, 4: 1.05, 2: 1.5, 1: 3.0}, 8),  # close enough, and then not
        ({16: 1.0, 8: 0.5, 4: 0.4, 2: 0.3, 1: 0.2}, 1),  # a tiny model
    ],
)
def test_no_more_threads_than_help(seconds, expected):
    assert fewest_that_suffice(list(seconds), race_of(seconds)) == expected


@pytest.mark.parametrize("ratios", [[0.8, 1.6, 0.9, 1.5, 1.4], [0.7, 1.3], [0.5, 0.9, 1.2, 1.2, 4.0]])
def test_nothing_is_learned_from_noise(ratios):
    assert fewest_that_suffice([4, 2, 1], lambda first, second: ratios) is None


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [([1.3, 1.6, 1.9, 1.7, 0.2], 4), ([0.9, 0.9, 0.9, 0.9, 9.0], 1), ([1.0, 1.03, 1.01, 1.04, 1.05], 4)],
)
def test_one_stall_is_no_noise_and_a_tie_is_none_either(ratios, expected):
    assert fewest_that_suffice([4, 2, 1], lambda first, second: ratios) == expected


def test_a_choice_is_kept_and_believed_for_the_same_cores_only(tmp_path):
    path = tmp_path / "threads" / "key.json"
    assert kept_choice(path, [4, 2, 1]) is None
    keep_choice(path, 2)
    assert kept_choice(path, [4, 2, 1]) == 2
    assert kept_choice(path, [8, 4]) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", json.dumps({"version": 0, "threads": 2}), json.dumps({"version": 1, "threads": [2]})],
)
def test_a_damaged_file_is_no_choice(tmp_path, text):
    path = tmp_path / "key.json"
    path.write_text(text)
    assert kept_choice(path, [4, 2, 1]) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "threads").write_text("a file, not a folder")
    keep_choice(tmp_path / "threads" / "key.json", 2)
