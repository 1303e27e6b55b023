"""The request's own text as a source: its continuations, one drafted token at a time."""

import random

import pytest

from foreword.draft.memory.own_text import NOWHERE, OwnText


def text(tokens, reference=()):
    made = OwnText(reference)
    made.follow(tokens)
    return made


def likeliest(made, length):
    """The likeliest token after token, from the end on."""
    place, drafted = made.end, []
    while len(drafted) < length and (chances := made.after(place)):
        token = max(chances, key=chances.__getitem__)
        drafted.append(token)
        place = made.moved(place, token)
    return drafted


def test_what_followed_the_longest_match_comes_first():
    made = text([1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3])
    chances = made.after(made.end)
    assert max(chances, key=chances.__getitem__) == 4, "after 1 2 3; 5 followed 2 3 alone"
    assert 0 < chances[5] < chances[4] < 1
    assert likeliest(made, 3) == [4, 9, 2]


def test_a_text_that_goes_round_is_copied_past_its_end():
    made = text([7, 1, 2, 3, 1, 2, 3])
    assert likeliest(made, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_reference_is_a_source_and_ends():
    made = text([5, 6], reference=[9, 5, 6, 7, 8])
    assert likeliest(made, 9) == [7, 8]
    assert text([5, 6]).after(text([5, 6]).end) == {}


def test_a_token_that_never_followed_leads_nowhere():
    made = text([1, 2, 3, 1, 2])
    assert made.moved(made.end, 9) == NOWHERE
    assert made.moved(NOWHERE, 1) == NOWHERE
    assert made.after(NOWHERE) == {}
    assert made.end.length == 2


@pytest.mark.parametrize("seed", range(5))
def test_chances_are_chances_and_a_longer_text_is_followed_as_one_at_once(seed):
    rng = random.Random(seed)
    tokens = [rng.randrange(5) for _ in range(200)]
    growing = OwnText()
    for end in range(1, 200, 7):
        growing.follow(tokens[:end])
        at_once, place = text(tokens[:end]), growing.end
        assert growing.after(place) == at_once.after(at_once.end)
        for _ in range(4):
            chances = growing.after(place)
            assert all(chance > 0 for chance in chances.values())
            assert sum(chances.values()) <= 1 + 1e-9
            if not chances:
                break
            place = growing.moved(place, rng.choice(list(chances)))
