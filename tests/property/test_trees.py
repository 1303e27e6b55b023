"""Properties of trees, masks and packing, for all trees."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foreword.tree.draft_tree import DraftTree
from foreword.tree.mask import ancestor_mask
from foreword.tree.pack import pack


@st.composite
def trees(draw, max_nodes: int = 24, vocab_size: int = 30) -> DraftTree:
    num_known = draw(st.integers(1, 5))
    token_ids = draw(st.lists(st.integers(0, vocab_size - 1), min_size=num_known, max_size=num_known))
    parents = list(range(-1, num_known - 1))
    taken = set()
    for _ in range(draw(st.integers(0, max_nodes - num_known))):
        parent = draw(st.integers(num_known - 1, len(token_ids) - 1))
        token = draw(st.integers(0, vocab_size - 1))
        if (parent, token) not in taken:
            taken.add((parent, token))
            token_ids.append(token)
            parents.append(parent)
    return DraftTree(token_ids, parents, num_known)


def ancestors(parents, node):
    """The slow way, node by node."""
    found = set()
    while node >= 0:
        found.add(node)
        node = parents[node]
    return found


@given(trees())
def test_every_generated_tree_is_valid(tree):
    tree.check(vocab_size=30)


@given(trees())
def test_the_mask_is_the_ancestor_relation(tree):
    mask = ancestor_mask(tree.parents)
    for node in range(tree.num_nodes):
        assert set(np.flatnonzero(mask[node])) == ancestors(tree.parents, node)


@given(trees())
def test_depth_is_the_number_of_ancestors(tree):
    assert tree.depths == [len(ancestors(tree.parents, n)) - 1 for n in range(tree.num_nodes)]
    assert all(len(tree.path_to(n)) == tree.depths[n] + 1 for n in range(tree.num_nodes))


@given(trees(), st.integers(0, 10))
def test_pruning_keeps_exactly_the_shallow_nodes(tree, max_depth):
    max_depth += tree.num_known - 1
    pruned = tree.pruned(max_depth)
    pruned.check(vocab_size=30)
    kept = [n for n in range(tree.num_nodes) if tree.depths[n] <= max_depth]
    assert list(pruned.token_ids) == [tree.token_ids[n] for n in kept]
    assert pruned.depths == [tree.depths[n] for n in kept]


@given(st.lists(trees(), min_size=1, max_size=4), st.data())
def test_packing_keeps_every_tree_apart(many, data):
    kv_lens = [data.draw(st.integers(0, 50)) for _ in many]
    batch = pack(many, kv_lens, list(range(len(many))))
    assert batch.num_nodes == sum(t.num_nodes for t in many)
    for r, tree in enumerate(many):
        start, end = batch.starts[r], batch.starts[r + 1]
        assert batch.token_ids[start:end].tolist() == list(tree.token_ids)
        assert batch.local_parents(r).tolist() == list(tree.parents)
        assert batch.positions[start:end].tolist() == [kv_lens[r] + d for d in tree.depths]
        for node in range(start, end):
            assert all(start <= n < end for n in ancestors(batch.parents, node))


@given(trees())
def test_the_chain_length_is_where_the_chain_ends(tree):
    (chain_len,) = pack([tree], [0], [0]).chain_lens
    assert list(tree.parents[:chain_len]) == list(range(-1, chain_len - 1))
    assert chain_len == tree.num_nodes or tree.parents[chain_len] != chain_len - 1


@given(trees())
def test_children_are_found_by_token(tree):
    for node in range(1, tree.num_nodes):
        assert tree.children[tree.parents[node]][tree.token_ids[node]] == node
