"""What the kernels refuse before they touch memory: each of these would read or write beyond what is there."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreword.errors import KernelError
from foreword.runtime.base import Need
from tests.native.models import LLAMA, batch_of, chain, same_bits

KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.mark.parametrize("starts", [[0, 40, 2], [0, 2, 2], [0, -1, 2]])
def test_starts_that_do_not_ascend(make_decoder: Callable[..., Any], starts: list[int]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    slots = [cache.open(64), cache.open(64)]
    batch = batch_of([([1], [-1]), ([2], [-1])], [0, 0], slots)
    with pytest.raises(KernelError, match="starts must ascend"):
        decoder.forward(replace(batch, starts=starts), cache, Need())


def test_two_requests_with_one_slot(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    cache.open(64)
    slot = cache.open(64)
    batch = batch_of([([1], [-1]), ([2], [-1])], [0, 0], [slot, slot])
    with pytest.raises(KernelError, match="slot 1 has two requests in one pass"):
        decoder.forward(batch, cache, Need())


def test_rows_that_no_pass_wrote_are_not_committed(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    slot = cache.open(64)
    with pytest.raises(ValueError, match="within the 0 nodes of the last pass; node 0 does not"):
        cache.commit(slot, [0])
    decoder.forward(chain([1, 2, 3], 0, slot), cache, Need())
    with pytest.raises(ValueError, match="within the 3 nodes of the last pass; node 7 does not"):
        cache.commit(slot, [0, 7, 9])
    assert cache.length(slot) == 0
    cache.reserve(slot, 500)  # moves the region, scratch included
    cache.commit(slot, [0, 1])
    with pytest.raises(ValueError, match="within the 0 nodes"):
        cache.commit(slot, [0])
    decoder.forward(chain([3], 2, slot), cache, Need())
    cache.truncate(slot, 1)
    with pytest.raises(ValueError, match="within the 0 nodes"):
        cache.commit(slot, [0])


def test_the_targets_pass_counts_after_one_of_its_first_layers(make_decoder: Callable[..., Any]) -> None:
    decoder = make_decoder(LLAMA)
    cache = decoder.new_cache()
    slot, plain = cache.open(64), cache.open(64)
    decoder.first_layers(1).forward(chain([9, 8], 0, slot), cache, Need())
    for used in (slot, plain):
        decoder.forward(chain([1, 2, 3], 0, used), cache, Need())
        cache.commit(used, [0, 1, 2])
    assert all(same_bits(a, b) for a, b in zip(cache.rows(slot), cache.rows(plain), strict=True))


@pytest.mark.parametrize("capacity", [1 << 31, 1 << 58, (1 << 63) - 1])
def test_regions_that_no_memory_holds(make_decoder: Callable[..., Any], capacity: int) -> None:
    """The handle: the runtime turns MemoryError into an error of its own."""
    cache = make_decoder(LLAMA).new_cache()
    slot = cache.open(8)
    with pytest.raises(MemoryError):
        cache.handle.open(capacity)
    with pytest.raises(MemoryError):
        cache.handle.reserve(slot, capacity)
    assert (cache.num_open, cache.length(slot)) == (1, 0)


SIZES = {"embedding": 10 * 64, "final_norm": 64, "norm": 64, "head_norm": 16, "vocab": 10}


def build(**changed: int) -> Any:
    """A decoder of one layer of zeros, with other sizes than it should have."""
    import foreword_kernels as kernels

    sizes = SIZES | changed
    data = kernels.WeightBytes.from_memory(np.zeros(1 << 16, dtype=np.uint8))
    shape = kernels.Shape()
    shape.hidden = shape.intermediate = 64
    shape.num_layers = shape.num_heads = shape.num_kv_heads = 1
    shape.head_dim, shape.vocab, shape.inverse_frequencies = 2, sizes["vocab"], [1.0]
    qkv, o, gate_up, down, head = (kernels.matrix(data, 0, 0, None, 64, tiles, 8) for tiles in (3, 4, 8, 4, 1))
    weights = kernels.Weights()
    weights.add_layer(data, 0, 0, sizes["norm"], 0, 0, sizes["head_norm"], qkv, o, gate_up, down)
    weights.set_embedding(data, 0, sizes["embedding"])
    weights.set_final_norm(data, 0, sizes["final_norm"])
    weights.set_head(data, head)
    return kernels.Decoder(shape, weights, kernels.ThreadPool(1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"embedding": 9 * 64}, "embedding has 576 values; expected 640"),
        ({"final_norm": 48}, "final_norm has 48 values; expected 64"),
        ({"norm": 63}, "attn_norm has 63 values; expected 64"),
        ({"head_norm": 2}, "q_norm has 2 values; expected 16"),
        ({"norm": 0}, "0 values at 0 do not lie in the packed weights"),
        ({"embedding": 1 << 63}, "do not lie in the packed weights"),
        ({"vocab": 0}, "a size of the model is not positive"),
        ({"vocab": -5}, "a size of the model is not positive"),
    ],
)
def test_weights_of_other_sizes_than_the_shape(changed: dict[str, int], message: str) -> None:
    build()
    with pytest.raises(ValueError, match=message):
        build(**changed)


def test_whole_row_draws_take_only_reserved_memory(tmp_path: Path) -> None:
    """And the portable path against itself: `check_paths.cpp` is compiled here as `check_arm.sh` compiles it."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = [KERNELS / "tests" / "check_paths.cpp"]
    sources += [KERNELS / "cpp" / f"{name}.cpp" for name in ("cpu", "pack", "truncate", "isa_portable")]
    flags = ["-std=c++20", "-O0", "-ffp-contract=off", "-w", "-D_GLIBCXX_ASSERTIONS", f"-I{KERNELS / 'cpp'}"]
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # check.sh's sanitizers
    subprocess.run([compiler, *flags, *map(str, sources), "-o", str(tmp_path / "check")], check=True, env=plain)
    result = subprocess.run([tmp_path / "check"], capture_output=True, text=True, check=False, env=plain)
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith("portable ")
