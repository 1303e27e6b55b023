"""EAGLE's layer on the kernels: the bits of a pair depend on nothing else, and they are near the torch runtime's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foreword.config import ModelSpec
from foreword.draft.heads.eagle import Eagle3Options, EagleDrafter
from foreword.errors import KernelError
from foreword.runtime.base import Need
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.sampling.params import SamplingParams
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.native.models import LLAMA, QWEN2, QWEN3, RandomWeights, same_bits
from tests.native.test_invariance import isas
from tests.support.drafters import Checked
from tests.support.eagle_heads import head_config, head_tensors, network, save_head
from tests.support.tiny_models import TinyWeights, tiny_spec
from tests.support.toy_engine import make_engine, run

JOINED = {"num_layers": 1, "joins_embedding": True, "tied_head": False, "head_size": 77}
SPECS = {
    "eagle3": replace(LLAMA, **JOINED),
    "eagle3-normed": replace(QWEN3, **JOINED, norms_residual=True),
    "eagle3-two-layers": replace(QWEN2, **{**JOINED, "num_layers": 2}),
    "eagle1": replace(LLAMA, num_layers=1, tied_head=False, has_first_norm=False, has_final_norm=False),
}
NUM_PAIRS = 40
TOKENS = np.random.default_rng(2).integers(0, 203, NUM_PAIRS).tolist()


class LayerWeights(RandomWeights):  # pyright: ignore[reportGeneralTypeIssues]
    """Random tensors of such a layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        generator = torch.Generator().manual_seed(9)
        if spec.joins_embedding:
            self.tensors["layers.0.hidden_norm.weight"] = 1 + 0.2 * torch.randn(spec.hidden_size, generator=generator)
            for name in "qkv":
                weight = self.tensors[f"layers.0.{name}.weight"]
                self.tensors[f"layers.0.{name}.weight"] = torch.cat((weight, weight.flip(1)), 1) * 0.7
        if not spec.has_first_norm:
            del self.tensors["layers.0.attn_norm.weight"]
        if not spec.has_final_norm:
            del self.tensors["norm.weight"]
        self.tensors["head.weight"] = self.tensors["head.weight"][: spec.num_logits]


def inputs_of(spec: ModelSpec) -> torch.Tensor:
    return torch.randn(NUM_PAIRS, spec.hidden_size, generator=torch.Generator().manual_seed(4))


def read(decoder: Any, spec: ModelSpec, sizes: list[int]) -> torch.Tensor:
    """Logits and states of all pairs, read in chunks of these sizes."""
    cache, rows, at = decoder.new_cache(), [], 0
    slot, inputs = cache.open(64), inputs_of(spec)
    for size in sizes:
        batch = pack([DraftTree.chain(TOKENS[at : at + size])], [at], [slot])
        need = Need(logits=range(size), taps=(spec.num_layers,), hidden=True)
        output = decoder.forward(batch, cache, need, inputs[at : at + size])
        rows.append(torch.cat((output.logits, output.taps[:, 0], output.hidden), 1))
        cache.commit(slot, range(size))
        at += size
    return torch.cat(rows)


@pytest.fixture(scope="module")
def make_layer(cache_dir: Path) -> Callable[..., Any]:
    from foreword.runtime.native_runtime import NativeRuntime

    def make(spec: ModelSpec, isa: str = "auto", threads: int = 2) -> Any:
        return NativeRuntime(threads=threads, cache_dir=cache_dir, isa=isa).decoder(spec, LayerWeights(spec))

    return make


@pytest.mark.parametrize("name", SPECS)
def test_every_path_thread_count_and_width_gives_the_same_bits(make_layer: Any, name: str) -> None:
    spec = SPECS[name]
    expected = read(make_layer(spec, threads=1), spec, [1] * NUM_PAIRS)
    for isa in isas():
        for threads in (1, 2, 3):
            decoder = make_layer(spec, isa, threads)
            for sizes in ([NUM_PAIRS], [3, 2, 17, 4, 5, 9]):
                assert same_bits(read(decoder, spec, sizes), expected), (isa, threads, sizes)


@pytest.mark.parametrize("name", SPECS)
def test_a_branch_of_a_tree_has_the_bits_of_its_path(make_layer: Any, name: str) -> None:
    spec, decoder = SPECS[name], make_layer(SPECS[name])
    expected, inputs = read(decoder, spec, [NUM_PAIRS])[:, : spec.num_logits], inputs_of(spec)
    cache = decoder.new_cache()
    slot = cache.open(64)
    decoder.forward(pack([DraftTree.chain(TOKENS[:10])], [0], [slot]), cache, Need(), inputs[:10])
    cache.commit(slot, range(10))
    tree = DraftTree([TOKENS[10], 5, TOKENS[11], 9, TOKENS[12]], [-1, 0, 0, 1, 2])
    rows = inputs[[10, 30, 11, 31, 12]]
    logits = decoder.forward(pack([tree], [10], [slot]), cache, Need(logits=range(5)), rows).logits
    assert same_bits(logits[[0, 2, 4]], expected[10:13])
    cache.commit(slot, [0, 2, 4])
    after = decoder.forward(pack([DraftTree.chain([TOKENS[13]])], [13], [slot]), cache, Need(logits=[0]), inputs[13:14])
    assert same_bits(after.logits, expected[13:14])


@pytest.mark.parametrize("name", SPECS)
def test_it_is_near_the_torch_runtime(make_layer: Any, name: str) -> None:
    """As near as eight bits are: each row points where the exact one does."""
    spec = SPECS[name]
    native = read(make_layer(spec), spec, [NUM_PAIRS]).double()
    exact = read(TorchRuntime(dtype="float64").decoder(spec, LayerWeights(spec)), spec, [NUM_PAIRS])
    parts = (spec.num_logits, spec.hidden_size, spec.hidden_size)
    for ours, wanted in zip(native.split(parts, 1), exact.split(parts, 1), strict=True):
        assert float(torch.cosine_similarity(ours, wanted, dim=1).min()) > 0.999


def test_embedding_and_input_are_both_needed(make_layer: Any) -> None:
    decoder = make_layer(SPECS["eagle3"])
    cache = decoder.new_cache()
    slot = cache.open(8)
    with pytest.raises(KernelError, match="joins embedding and input"):
        decoder.forward(pack([DraftTree.chain([1])], [0], [slot]), cache, Need())
    with pytest.raises(KernelError, match="token id 203 is outside the vocabulary of 203"):
        decoder.forward(pack([DraftTree.chain([203])], [0], [slot]), cache, Need(), torch.zeros(1, 72))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "sampled"])
def test_tokens_are_those_of_plain_decoding(
    kind: str, options: dict[str, Any], cache_dir: Path, tmp_path: Path
) -> None:
    from foreword.runtime.native_runtime import NativeRuntime

    spec, runtime = tiny_spec("llama", num_layers=8), NativeRuntime(cache_dir=cache_dir)
    weights, is_eagle3 = TinyWeights(spec), kind == "eagle3"
    decoder = runtime.decoder(spec, weights)
    ids = torch.arange(1, 97, 2) if is_eagle3 else None
    folder = save_head(tmp_path, head_config(spec, is_eagle3), head_tensors(spec, is_eagle3, draft_ids=ids))
    prompts, params = [[5, 17, 3, 42], [1, 2, 3, 1, 2, 3, 1], [90]], [SamplingParams(max_tokens=12, **options)] * 3
    plain = [request.new_ids for request in run(make_engine(decoder), prompts, params)]
    drafts = []
    for batch_size in (1, 3):
        made = network(folder, is_eagle3, spec, weights, runtime)
        drafter = Checked(EagleDrafter(made, Eagle3Options(draft_tree_depth=3), kind))
        requests = run(make_engine(decoder, drafter, num_nodes=9, batch_size=batch_size), prompts, params)
        assert [request.new_ids for request in requests] == plain
        drafts.append([(request.stats.num_steps, request.stats.accepted_tokens) for request in requests])
        assert drafter.num_drafted > 50
    assert drafts[0] == drafts[1]  # what is drafted for one does not depend on the others either
