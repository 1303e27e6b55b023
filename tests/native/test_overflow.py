"""Logits that are NaN or infinite, which only a broken model gives: NaN counts as minus infinity, and where the best is no
number no token is drawn, as by `foreword.sampling.warp`.

Rows that are NaN in part are drawn from in kernels/tests/check_paths.cpp.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from foreword.runtime.base import Draw, Need, PassOutput
from foreword.runtime.native_runtime import NativeRuntime
from foreword.sampling import warp as warps
from foreword.sampling.noise import row_key
from foreword.sampling.params import Warp
from foreword.sampling.warp import NO_TOKEN
from tests.native.models import QWEN2, RandomWeights, chain, same_bits
from tests.native.test_invariance import isas

WARPS = [
    Warp(),
    Warp(0.8),
    Warp(0.8, top_k=5),
    Warp(1.0, top_p=0.02),
    Warp(1.0, top_p=0.95),
    Warp(1.0, min_p=0.1),
    Warp(1.0, top_k=200, top_p=0.3, min_p=0.2),
]
SPEC = replace(QWEN2, num_layers=1, tied_head=False)
LARGE = 1e25  # of each input of the head
NUM_NODES = 3
FINITE = {token: 1.0 + 0.37 * (token * 7 % 23) for token in range(11, 200, 9)}

Run = Callable[..., PassOutput]


def head_row(value: float) -> Tensor:
    """A row of the head whose logit is `value`, up to rounding."""
    weight = value / LARGE if value - value == 0.0 else torch.tensor(value).sign().item() * 1e37
    return torch.nn.functional.pad(torch.tensor([weight]), (0, 127))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(values, need, isa): a pass whose every node has the logits `values`, the rest of the vocabulary minus infinity;
    `broken` nodes hold an infinity or NaN before the layer."""

    def run(
        values: dict[int, float], need: Need, isa: str = "auto", broken: Mapping[int, float] = MappingProxyType({})
    ) -> PassOutput:
        weights = RandomWeights(SPEC)
        for name in ("o", "down"):
            weights.tensors[f"layers.0.{name}.weight"].zero_()
        weights.tensors["norm.weight"] = torch.full((128,), LARGE)
        rows = [head_row(values.get(token, float("-inf"))) for token in range(SPEC.vocab_size)]
        weights.tensors["head.weight"] = torch.stack(rows)
        weights.fingerprint = str(sorted(values.items()))
        decoder = NativeRuntime(threads=2, cache_dir=tmp_path, isa=isa).decoder(SPEC, weights)
        cache = decoder.new_cache()
        inputs = torch.ones(NUM_NODES, SPEC.hidden_size)
        for node, value in broken.items():
            inputs[node, 100] = value
        return decoder.forward(chain([0] * NUM_NODES, 0, cache.open(64)), cache, need, inputs)

    return run


@pytest.mark.parametrize("isa", isas())
def test_finite_logits_are_drawn_from_as_by_sampling(run: Run, isa: str) -> None:
    draws = [Draw(i % NUM_NODES, warp, row_key(i, 0, 0, 1)) for i, warp in enumerate(WARPS * 5)]
    out = run(FINITE, Need(draws=draws, logits=(0,)), isa)
    assert out.logits is not None
    assert int((out.logits == -torch.inf).sum()) == SPEC.vocab_size - len(FINITE)
    assert out.choices == [warps.draw(out.logits[0], draw.warp, draw.key) for draw in draws]
    assert len(set(out.choices)) > 3


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")], ids=str)
def test_a_node_that_overflows_draws_no_token(run: Run, isa: str, value: float) -> None:
    draws = [Draw(i % NUM_NODES, warp, row_key(i, 0, 0, 1)) for i, warp in enumerate(WARPS * 3)]
    need = Need(draws=draws, logits=(0, 1, 2), top_k=4, top_nodes=(1,))
    out, sound = run(FINITE, need, isa, {1: value}), run(FINITE, need, isa)
    assert out.logits is not None
    assert out.top_ids is not None
    assert out.top_logprobs is not None
    assert sound.logits is not None
    assert bool(out.logits[1].isnan().all())
    assert same_bits(out.logits[0], sound.logits[0])  # it does not see node 1
    assert [c for c, d in zip(out.choices, draws, strict=True) if d.node == 1] == [NO_TOKEN] * len(WARPS)
    assert [c for c, d in zip(out.choices, draws, strict=True) if d.node == 0] == [
        c for c, d in zip(sound.choices, draws, strict=True) if d.node == 0
    ]
    assert out.top_ids.tolist() == [[0, 1, 2, 3]]
    assert bool((out.top_logprobs == -torch.inf).all())


@pytest.mark.parametrize("isa", isas())
def test_minus_infinity_everywhere_draws_no_token(run: Run, isa: str) -> None:
    draws = [Draw(i % NUM_NODES, warp, row_key(i, 0, 0, 1)) for i, warp in enumerate(WARPS)]
    assert run({}, Need(draws=draws), isa).choices == [NO_TOKEN] * len(draws)


@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_infinity_is_no_score_to_draw_from(run: Run, warp: Warp) -> None:
    values = FINITE | {60: float("inf"), 160: float("inf")}
    draws = [Draw(0, warp, row_key(seed, 0, 0, 1)) for seed in range(10)]
    out = run(values, Need(draws=draws, logits=(0,)))
    assert out.logits is not None
    assert out.choices == [NO_TOKEN] * 10 == [warps.draw(out.logits[0], draw.warp, draw.key) for draw in draws]


@pytest.mark.parametrize("count", [1, 12, 203])
def test_minus_infinity_is_named_last(run: Run, count: int) -> None:
    out = run(FINITE, Need(top_k=count, top_nodes=(1,), logits=(1,)))
    assert out.logits is not None
    assert out.top_ids is not None
    assert out.top_logprobs is not None
    values, ids = out.logits[0].log_softmax(dim=-1).sort(descending=True, stable=True)
    assert torch.equal(out.top_ids[0], ids[:count])
    torch.testing.assert_close(out.top_logprobs[0], values[:count], atol=1e-5, rtol=1e-5)
