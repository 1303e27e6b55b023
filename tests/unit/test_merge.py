"""A merged tree holds every path of its parts, once; and each part finds its own nodes again."""

from hypothesis import given
from hypothesis import strategies as st

from foreword.tree.draft_tree import DraftTree
from foreword.tree.merge import expected_accepted, locate, merge


@st.composite
def proposals(draw):
    """Trees for the same text."""
    known = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    trees = []
    for _ in range(draw(st.integers(1, 4))):
        token_ids, parents, taken = list(known), list(range(-1, len(known) - 1)), set()
        for _ in range(draw(st.integers(0, 8))):
            parent, token = draw(st.integers(len(known) - 1, len(token_ids) - 1)), draw(st.integers(0, 3))
            if (parent, token) not in taken:
                taken.add((parent, token))
                token_ids.append(token)
                parents.append(parent)
        trees.append(DraftTree(token_ids, parents, len(known)))
    return trees


def paths(tree):
    return {tuple(tree.token_ids[n] for n in tree.path_to(node)) for node in range(tree.num_nodes)}


@given(proposals())
def test_the_paths_are_the_union(trees):
    merged = merge(trees)
    merged.check()
    assert paths(merged) == set().union(*(paths(tree) for tree in trees))
    assert len(paths(merged)) == merged.num_nodes


@given(proposals())
def test_every_part_finds_its_own_nodes(trees):
    merged = merge(trees)
    for tree in trees:
        for node, place in enumerate(locate(tree, merged)):
            own = [tree.token_ids[n] for n in tree.path_to(node)]
            assert own == [merged.token_ids[n] for n in merged.path_to(place)]


def test_what_was_taken_out_is_not_found_nor_what_hung_on_it():
    own = DraftTree([1, 2, 3, 4], [-1, 0, 1, 0])
    within = DraftTree([1, 4, 3], [-1, 0, 0])
    assert locate(own, within) == [0, -1, -1, 1]
    forced = DraftTree([1, 2, 3], [-1, 0, 1], num_known=2)  # a grammar has decided what one of them guessed
    assert locate(own, forced) == [0, 1, 2, -1]


def test_the_highest_chance_counts():
    a = DraftTree([1, 2, 3], [-1, 0, 1], 1, [1.0, 0.5, 0.1])
    b = DraftTree([1, 2, 4], [-1, 0, 1], 1, [1.0, 0.4, 0.3])
    merged = merge([a, b])
    assert dict(zip(merged.token_ids, merged.accept_probs, strict=True)) == {1: 1.0, 2: 0.5, 3: 0.1, 4: 0.3}
    assert expected_accepted(merged) == 0.5 + 0.1 + 0.3
    assert 0 < expected_accepted(DraftTree.chain([1, 2], [3])) < 1
