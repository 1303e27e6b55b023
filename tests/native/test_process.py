"""What a process does around passes: it forks, and it ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from foreword.runtime.base import Need
from tests.native.models import LLAMA, chain, same_bits

TOKENS = list(range(1, 41))

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def read(decoder: Any) -> Tensor:
    cache = decoder.new_cache()
    return decoder.forward(chain(TOKENS, 0, cache.open(64)), cache, Need(logits=range(len(TOKENS)))).logits


def child_says_yes(question: Callable[[], bool]) -> bool:
    """Asks it in a child of fork(), which gets a minute."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if question() else 1)
        finally:
            os._exit(2)
    for _ in range(6000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python warns of any fork beside threads
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_child_of_fork_has_threads_of_its_own(make_decoder: Callable[..., Any], threads: int) -> None:
    decoder = make_decoder(LLAMA, threads=threads)
    expected = read(decoder)
    assert child_says_yes(lambda: same_bits(read(decoder), expected))
    assert child_says_yes(lambda: child_says_yes(lambda: same_bits(read(decoder), expected)))
    assert same_bits(read(decoder), expected)  # and the parent keeps its own


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_amid_a_pass_leaves_no_lock_held(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA, threads=2)
    expected = read(decoder)
    stop = threading.Event()

    def keep_reading() -> None:
        while not stop.is_set():
            read(decoder)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        assert all(child_says_yes(lambda: same_bits(read(decoder), expected)) for _ in range(8))
    finally:
        stop.set()
        reader.join()


# Without torch, so that it starts at once. Zeros do for weights.
ENDS_AMID_PASSES = """
import threading, time
import numpy as np
import foreword_kernels as k

shape = k.Shape()
shape.hidden, shape.intermediate, shape.num_layers = 256, 1024, 8
shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.vocab = 4, 4, 64, 512
shape.inverse_frequencies = [1.0] * 32
data = k.WeightBytes.from_memory(np.zeros(1 << 20, dtype=np.uint8))
def matrix(width, rows):
    return k.matrix(data, 0, 0, None, width, rows // 16, 8)
weights = k.Weights()
for _ in range(shape.num_layers):
    weights.add_layer(data, None, None, 256, None, None, 64, matrix(256, 768), matrix(256, 256), matrix(256, 2048), matrix(1024, 256))
shape.has_final_norm = False
decoder = k.Decoder(shape, weights, k.ThreadPool(2))
n = 64
ints = lambda values: np.array(values, dtype=np.int32)
none, doubles = ints([]), np.zeros(0)
inputs, hidden = np.ones((n, 256), dtype=np.float32), np.empty((n, 256), dtype=np.float32)
def read():
    cache = k.KvCache(8, 4, 64)
    slot = cache.open(n)
    while True:
        decoder.forward(cache, ints(range(n)), ints(range(-1, n - 1)), ints(range(n)), ints([0, n]), ints([0]), ints([slot]), inputs,
            none, doubles, none, doubles, doubles, np.zeros(0, dtype=np.uint64), none, none, none, None, none, 0, None, None, none,
            None, hidden)
        started.set()
started = threading.Event()
for _ in range(3):
    threading.Thread(target=read, daemon=True).start()
started.wait()
time.sleep(0.02)
"""


@pytest.mark.parametrize("_run", range(3))
def test_a_process_ends_cleanly_with_passes_under_way(_run: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_AMID_PASSES], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
