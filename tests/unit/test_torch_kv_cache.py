"""The cache of the torch runtime against a model of it: a list of rows a request."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.errors import CapacityError
from foreword.runtime.torch_kv_cache import TorchKVCache
from tests.support.tiny_models import tiny_spec

SPEC = tiny_spec(num_layers=2, num_kv_heads=2, head_dim=4)


def new_cache(dtype=torch.float32):
    return TorchKVCache(SPEC, torch.device("cpu"), dtype)


def write(cache, slot, marks):
    """A pass whose node i leaves `marks[i]` (and what follows from it) in every layer."""
    rows = cache.begin_pass(slot, len(marks))
    for layer, new in enumerate(rows.new):
        for node, mark in enumerate(marks):
            new[0, :, node] = mark + 1000 * layer
            new[1, :, node] = -(mark + 1000 * layer)


def marks_of(cache, slot):
    """The marks of the committed rows, after checking that all layers, heads and values agree on them."""
    keys, values = cache.rows(slot)
    marks = keys[0, 0, :, 0]
    for layer in range(SPEC.num_layers):
        expected = (marks + 1000 * layer)[None, :, None].expand(SPEC.num_kv_heads, -1, SPEC.head_dim)
        assert torch.equal(keys[layer], expected)
        assert torch.equal(values[layer], -expected)
    return [int(mark) for mark in marks]


paths = st.integers(1, 6).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)).map(sorted))  # nodes of a pass, path to keep
)
actions = st.one_of(
    st.tuples(st.just("open"), st.integers(0, 5)),
    st.tuples(st.just("close"), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.integers(0, 3), paths),
    st.tuples(st.just("dropped pass"), st.integers(0, 3), paths),
    st.tuples(st.just("truncate"), st.integers(0, 3), st.floats(0, 1)),
    st.tuples(st.just("reserve"), st.integers(0, 3), st.integers(0, 40)),
    st.tuples(st.just("fork"), st.integers(0, 3), st.floats(0, 1), st.integers(0, 40)),
)


@given(st.lists(actions, max_size=25))
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_calls_leaves_the_rows_that_a_list_would_hold(script):
    cache, model, next_mark = new_cache(), {}, 0
    for action, *arguments in script:
        if action == "open":
            model[cache.open(arguments[0])] = []
            continue
        if not model:
            continue
        slot = sorted(model)[arguments[0] % len(model)]
        if action == "close":
            cache.close(slot)
            del model[slot]
        elif action in ("pass", "dropped pass"):
            num_nodes, path = arguments[1]
            cache.reserve(slot, cache.length(slot) + num_nodes)
            marks = list(range(next_mark, next_mark + num_nodes))
            next_mark += num_nodes
            write(cache, slot, marks)
            path = path if action == "pass" else []
            cache.commit(slot, path)
            model[slot] += [marks[node] for node in path]
        elif action == "truncate":
            length = round(arguments[1] * len(model[slot]))
            cache.truncate(slot, length)
            del model[slot][length:]
        elif action == "fork":
            length = round(arguments[1] * len(model[slot]))
            forked = cache.fork(slot, length, arguments[2])
            assert cache._regions[forked].capacity >= max(length, arguments[2])
            model[forked] = model[slot][:length]
        else:
            cache.reserve(slot, arguments[1])
        assert cache.num_open == len(model)
        for open_slot, marks in model.items():
            assert cache.length(open_slot) == len(marks)
            assert marks_of(cache, open_slot) == marks


def test_a_path_that_is_already_in_place_is_not_moved():
    cache = new_cache()
    slot = cache.open(8)
    write(cache, slot, [1, 2, 3, 4])
    region = cache._regions[slot].values
    version = region._version
    cache.commit(slot, [0, 1, 2])
    assert region._version == version, "rows were written"
    assert marks_of(cache, slot) == [1, 2, 3]


def test_growing_keeps_rows_under_way():
    """Reserve between a pass and its commit."""
    cache = new_cache()
    slot = cache.open(4)
    write(cache, slot, [1, 2, 3, 4])
    cache.reserve(slot, 30)
    cache.commit(slot, [0, 2, 3])
    assert marks_of(cache, slot) == [1, 3, 4]


def test_a_region_grows_by_half_at_least_and_never_shrinks():
    cache = new_cache()
    slot = cache.open(100)
    row_bytes = SPEC.kv_bytes_per_token(4)
    assert cache.num_bytes == 100 * row_bytes
    cache.reserve(slot, 50)
    assert cache.num_bytes == 100 * row_bytes
    cache.reserve(slot, 101)
    assert cache.num_bytes == 150 * row_bytes
    cache.reserve(slot, 1000)
    assert cache.num_bytes == 1000 * row_bytes


def test_a_region_takes_what_is_said_beforehand():
    cache = new_cache(torch.bfloat16)
    slot = cache.open(10)
    assert cache.num_bytes == cache.region_bytes(10)
    cache.fork(slot, 0, 30)
    assert cache.num_bytes == cache.region_bytes(10) + cache.region_bytes(30)
    cache.reserve(slot, 100)
    assert cache.num_bytes == cache.region_bytes(100) + cache.region_bytes(30)


def test_closing_frees_memory_and_the_slot_is_used_again():
    cache = new_cache(torch.bfloat16)
    slots = [cache.open(10) for _ in range(3)]
    assert slots == [0, 1, 2]
    cache.close(1)
    assert (cache.num_open, cache.num_bytes) == (2, 20 * SPEC.kv_bytes_per_token(2))
    assert cache.open(10) == 1
    assert cache.length(1) == 0
    with pytest.raises(AssertionError, match=r"slot 7 is not open; open slots: \[0, 1, 2\]"):
        cache.length(7)


def test_rows_are_float32_copies():
    cache = new_cache(torch.bfloat16)
    slot = cache.open(4)
    write(cache, slot, [1, 2])
    cache.commit(slot, [0, 1])
    keys, values = cache.rows(slot)
    assert keys.dtype == values.dtype == torch.float32
    assert keys.shape == (2, 2, 2, 4)
    keys.zero_()
    assert cache.rows(slot)[0][0, 1, :, 2].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ([1, 0], "not ascending"),
        ([0, 0], "not ascending"),
        ([0, 4], "leaves the 4 scratch rows"),
        ([-1], "leaves the 4"),
    ],
)
def test_a_path_that_is_none_is_refused(path, message):
    cache = new_cache()
    slot = cache.open(8)
    write(cache, slot, [1, 2, 3, 4])
    with pytest.raises(AssertionError, match=message):
        cache.commit(slot, path)


def test_scratch_can_be_committed_once_only():
    cache = new_cache()
    slot = cache.open(8)
    write(cache, slot, [1, 2])
    cache.commit(slot, [0])
    with pytest.raises(AssertionError, match="leaves the 0 scratch rows"):
        cache.commit(slot, [0])


def test_truncating_beyond_what_is_held_is_refused():
    cache = new_cache()
    slot = cache.open(8)
    with pytest.raises(AssertionError, match="cannot truncate slot 0 of 0 rows to 1"):
        cache.truncate(slot, 1)


def test_memory_that_does_not_exist_is_one_clear_error():
    cache = new_cache()
    with pytest.raises(CapacityError, match="positions takes .* MiB, which could not be allocated on cpu"):
        cache.open(1 << 50)
    assert cache.num_open == 0
