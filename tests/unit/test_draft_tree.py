"""A tree that is not one is refused, with the values."""

import pytest

from foreword.tree.draft_tree import DraftTree

BAD = {
    "parent does not point backwards": (DraftTree([1, 2, 3], [-1, 2, 1]), "does not point backwards"),
    "two roots": (DraftTree([1, 2], [-1, -1]), "does not point backwards"),
    "no root": (DraftTree([1, 2], [0, 0]), "root's parent is 0"),
    "equal siblings": (DraftTree([1, 2, 2], [-1, 0, 0]), "two children 2"),
    "lengths differ": (DraftTree([1, 2], [-1]), "1 parents for 2 tokens"),
    "committed nodes branch": (DraftTree([1, 2, 3], [-1, 0, 0], num_known=3), "committed nodes form a chain"),
    "hangs off the prompt": (DraftTree([1, 2, 3], [-1, 0, 0], num_known=2), "before the last committed node"),
    "id outside": (DraftTree([1, 99], [-1, 0]), "outside"),
    "empty": (DraftTree([], []), "at least its root"),
    "probs of another length": (DraftTree([1, 2], [-1, 0], accept_probs=[1.0]), "accept_probs has 1 of 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_tree_is_refused(name):
    tree, message = BAD[name]
    with pytest.raises(AssertionError, match=message):
        tree.check(vocab_size=10)


def test_a_chain():
    tree = DraftTree.chain([4, 5], [6, 7])
    tree.check(10)
    assert (list(tree.token_ids), list(tree.parents), tree.num_known) == ([4, 5, 6, 7], [-1, 0, 1, 2], 2)
    assert tree.is_chain
    assert tree.num_drafted == 2


def test_a_subset_renumbers_parents():
    tree = DraftTree([0, 1, 2, 3, 4], [-1, 0, 0, 1, 2], accept_probs=[1.0, 0.5, 0.4, 0.3, 0.2])
    part = tree.subset([0, 2, 4])
    part.check(10)
    assert (part.token_ids, part.parents, part.accept_probs) == ([0, 2, 4], [-1, 0, 1], [1.0, 0.4, 0.2])
