"""Beside a runtime with threads of its own, torch does its share of a step on one thread."""

import threading

import pytest
import torch

from foreword.runtime.torch_threads import TorchThreads
from foreword.sampling.params import SamplingParams
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_engine import make_engine, run


@pytest.fixture(autouse=True)
def _three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_afterwards_all_is_as_before():
    with TorchThreads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with TorchThreads(None):
        assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), TorchThreads(1):
        raise KeyError
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("has_own_threads", "expected"), [(True, 1), (False, 3)])
def test_a_step_leaves_its_cores_to_the_runtime(has_own_threads, expected):
    seen = []

    class Spy(ToyDecoder):
        def forward(self, *args):
            seen.append(torch.get_num_threads())
            if len(seen) == 6:
                raise RuntimeError
            return super().forward(*args)

    Spy.has_own_threads = has_own_threads
    engine = make_engine(Spy())
    run(engine, [[1, 2, 3]], [SamplingParams(max_tokens=4)])
    assert torch.get_num_threads() == 3
    with pytest.raises(RuntimeError):
        run(engine, [[1, 2, 3]], [SamplingParams(max_tokens=9)])
    assert seen == [expected] * 6
    assert torch.get_num_threads() == 3


def test_blocks_of_several_threads_may_overlap():
    """The second one begins inside the first and ends after it: neither leaves its number behind."""
    second_in, first_out, found = threading.Event(), threading.Event(), {}

    def first():
        torch.ones(1)
        with TorchThreads(1):
            begun.set()
            second_in.wait(10)
        found["first"] = torch.get_num_threads()
        first_out.set()

    def second():
        begun.wait(10)
        with TorchThreads(1):
            second_in.set()
            first_out.wait(10)
        found["second"] = torch.get_num_threads()

    begun = threading.Event()
    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    later = threading.Thread(target=lambda: found.__setitem__("later", torch.get_num_threads()))
    later.start()
    later.join()
    assert found == {"first": 3, "second": 3, "later": 3}
    assert torch.get_num_threads() == 3
