"""Which pairs may exchange ids, and what is said about each."""

import pytest
import torch

from foreword.checkpoint.pairing import Vocabulary, pair
from foreword.target.load_model import TrimmedVocab

WORDS = [f"word{i}" for i in range(1000)]


def vocabulary(words, name="a model", num_parameters=100_000_000, **special):
    return Vocabulary(name, {word: i for i, word in enumerate(words)}, num_parameters, special)


def test_equal_vocabularies_of_padded_models_pair():
    found = pair(vocabulary(WORDS, "big"), vocabulary(WORDS, "small"))
    assert found.is_same_vocabulary
    assert (found.shared_size, found.num_same, found.num_different) == (1000, 1000, 0)
    assert "big has 1000 tokens, small 1000; 1000 ids mean the same" in str(found)


def test_a_few_special_tokens_may_differ():
    """[R51], [R54]: refusing a good pair for one id helps nobody."""
    other = [*WORDS[:998], "<|end|>", "<|start|>"]
    found = pair(vocabulary(WORDS, eos_token="word998"), vocabulary(other, eos_token="<|end|>"))
    assert found.is_same_vocabulary
    assert found.num_different == 2
    assert "but for 2 ids" in str(found)
    assert "eos_token is 'word998' for the target, '<|end|>' for the drafter" in str(found)


def test_a_longer_vocabulary_on_either_side_pairs():
    longer = [*WORDS, *(f"<|extra{i}|>" for i in range(200))]
    for target, draft in ((WORDS, longer), (longer, WORDS)):
        found = pair(vocabulary(target), vocabulary(draft))
        assert found.is_same_vocabulary
        assert found.shared_size == 1000


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (WORDS[::-1], "the same tokens under other ids"),
        ([f"other{i}" for i in range(1000)], "another tokenizer"),
        ([*WORDS[:500], *WORDS[501:], "word500"], "the same tokens under other ids"),
    ],
    ids=["permuted", "foreign", "shifted by one from the middle"],
)
def test_others_go_through_the_text_and_are_told_so(words, expected):
    """[R51]: a permuted vocabulary of the same size would run and be rejected throughout."""
    found = pair(vocabulary(WORDS), vocabulary(words))
    assert not found.is_same_vocabulary
    assert expected in str(found)
    assert "a drafter of the target's family would do better" in str(found)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1, "too close to be faster"), (2.5, "too close"), (5, "2 to 4 per step"), (20, "a good ratio")],
)
def test_what_to_expect_by_size(ratio, expected):
    found = pair(vocabulary(WORDS, num_parameters=int(1e8 * ratio)), vocabulary(WORDS))
    assert expected in str(found)


def test_trimmed_tables():
    class Weights:
        fingerprint = "abc"
        tensors = {"embed.weight": torch.arange(12.0).reshape(6, 2), "norm.weight": torch.ones(2)}

        def has_tensor(self, name):
            return name in self.tensors

        def tensor(self, name):
            return self.tensors[name]

    trimmed = TrimmedVocab(Weights(), 4)
    assert trimmed.tensor("embed.weight").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert trimmed.tensor("norm.weight").tolist() == [1, 1]
    assert trimmed.has_tensor("embed.weight")
    assert not trimmed.has_tensor("head.weight")
    assert trimmed.fingerprint != "abc"
