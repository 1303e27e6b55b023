"""The torch runtime against transformers, and against itself run another way."""

import pytest
import torch

from foreword.config import RopeSpec
from foreword.errors import CapacityError, CheckpointError, ConfigError
from foreword.runtime.base import Need
from foreword.runtime.torch_linear import TorchLinear
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.sampling.params import Warp
from foreword.sampling.sampler import Draw
from foreword.sampling.warp import draw
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.support.tiny_models import LLAMA3_ROPE, TinyWeights, hf_model, tiny_spec

MODELS = {
    "llama": tiny_spec("llama"),
    "llama_untied": tiny_spec("llama", tied_head=False),
    "llama_without_groups": tiny_spec("llama", num_kv_heads=6),
    "llama_one_kv_head": tiny_spec("llama", num_kv_heads=1),
    "llama3_rope": tiny_spec("llama", rope=LLAMA3_ROPE),
    "linear_rope": tiny_spec("llama", rope=RopeSpec(theta=500.0, linear_factor=3.0)),
    "qwen2": tiny_spec("qwen2"),
    "qwen3": tiny_spec("qwen3"),
}
FAMILIES = ("llama", "qwen2", "qwen3")
# Float32 sums in another order: a few units of 2^-24 relative, times some tens of operations; measured below 2e-5.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def random_ids(num: int, seed: int = 0) -> list[int]:
    return torch.randint(97, (num,), generator=torch.Generator().manual_seed(seed)).tolist()


def build(name: str, seed: int = 1):
    weights = TinyWeights(MODELS[name], seed)
    return weights, TorchRuntime().decoder(weights.spec, weights)


def run(decoder, cache, trees, slots, need=None):
    """One pass over `trees`, logits of all nodes unless something else is wanted."""
    batch = pack(trees, [cache.length(slot) for slot in slots], slots)
    return decoder.forward(batch, cache, need or Need(logits=range(batch.num_nodes)))


def linear_logits(decoder, token_ids):
    """Logits after every token, from one pass over an empty cache."""
    cache = decoder.new_cache()
    return run(decoder, cache, [DraftTree.chain(token_ids)], [cache.open(len(token_ids))]).logits.clone()


def filled(decoder, token_ids, spare=32):
    """A cache with one request that has read `token_ids`."""
    cache = decoder.new_cache()
    slot = cache.open(len(token_ids) + spare)
    run(decoder, cache, [DraftTree.chain(token_ids)], [slot], Need())
    cache.commit(slot, range(len(token_ids)))
    return cache, slot


#      root 0 ── 1 ── 3 ── 5
#        │       └─── 4
#        └───── 2 ── 6
TREE = DraftTree([11, 12, 13, 14, 15, 16, 17], [-1, 0, 0, 1, 1, 3, 2])


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_hidden_states_equal_those_of_transformers(name):
    weights, decoder = build(name)
    token_ids = random_ids(150)
    with torch.no_grad():
        expected = hf_model(weights)(torch.tensor([token_ids]), output_hidden_states=True)
    cache = decoder.new_cache()
    taps = tuple(range(weights.spec.num_layers))
    need = Need(logits=range(150), taps=taps, hidden=True)
    output = run(decoder, cache, [DraftTree.chain(token_ids)], [cache.open(150)], need)
    logits = expected.logits[0]
    assert (output.logits - logits).norm() / logits.norm() < 1e-4
    assert logits.std() > 0.5  # not a degenerate model
    for tap in taps:
        torch.testing.assert_close(output.taps[:, tap], expected.hidden_states[tap][0], **CLOSE)
    torch.testing.assert_close(output.hidden, expected.hidden_states[-1][0], **CLOSE)


def test_the_last_tap_is_the_residual_stream_before_the_final_norm():
    weights, decoder = build("llama")
    cache = decoder.new_cache()
    need = Need(taps=(3, 0), hidden=True)
    output = run(decoder, cache, [DraftTree.chain(random_ids(9))], [cache.open(9)], need)
    last, first = output.taps.unbind(1)
    rms = last.square().mean(-1, keepdim=True).add(weights.spec.norm_eps).sqrt()
    torch.testing.assert_close(last / rms * weights.tensor("norm.weight"), output.hidden, **CLOSE)
    assert torch.equal(first, weights.tensor("embed.weight")[random_ids(9)])


@pytest.mark.parametrize("name", MODELS)
def test_each_node_of_a_tree_sees_its_own_path_and_nothing_else(name):
    _, decoder = build(name)
    prefix = random_ids(20)
    cache, slot = filled(decoder, prefix)
    logits = run(decoder, cache, [TREE], [slot]).logits
    for node in range(TREE.num_nodes):
        path = [TREE.token_ids[n] for n in TREE.path_to(node)]
        torch.testing.assert_close(logits[node], linear_logits(decoder, prefix + path)[-1], **CLOSE)


def test_siblings_do_not_see_each_other():
    """Changing a node changes itself and its descendants, and not one bit elsewhere."""
    _, decoder = build("llama")
    cache, slot = filled(decoder, random_ids(20))
    before = run(decoder, cache, [TREE], [slot]).logits.clone()
    token_ids = list(TREE.token_ids)
    token_ids[1] = 50
    after = run(decoder, cache, [DraftTree(token_ids, TREE.parents)], [slot]).logits
    changed = [node for node in range(TREE.num_nodes) if not torch.equal(before[node], after[node])]
    assert changed == [1, 3, 4, 5]


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_that_share_a_pass_get_what_each_gets_alone(family):
    """A decoding request, a tree and two chunks of prompts at different lengths."""
    _, decoder = build(family)
    prompts = [random_ids(5, 1), random_ids(40, 2), [], random_ids(70, 3)]
    trees = [DraftTree.chain([7]), TREE, DraftTree.chain(random_ids(30, 4)), DraftTree.chain(random_ids(12, 5), [3, 4])]
    cache = decoder.new_cache()
    slots = [cache.open(120) for _ in prompts]
    for prompt, slot in zip(prompts, slots, strict=True):
        if prompt:
            run(decoder, cache, [DraftTree.chain(prompt)], [slot], Need())
            cache.commit(slot, range(len(prompt)))
    together = run(decoder, cache, trees, slots).logits.clone()
    alone = [run(decoder, cache, [tree], [slot]).logits.clone() for tree, slot in zip(trees, slots, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_read_in_chunks_equals_the_whole(family):
    _, decoder = build(family)
    token_ids = random_ids(61)
    whole = linear_logits(decoder, token_ids)
    cache = decoder.new_cache()
    slot = cache.open(61)
    pieces = []
    for first, end in ((0, 1), (1, 20), (20, 60), (60, 61)):
        pieces.append(run(decoder, cache, [DraftTree.chain(token_ids[first:end])], [slot]).logits.clone())
        cache.commit(slot, range(end - first))
    torch.testing.assert_close(torch.cat(pieces), whole, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("path", [[0], [0, 1], [0, 2, 6], [0, 1, 3, 5]])
def test_the_cache_after_a_committed_path_equals_that_of_plain_decoding(family, path):
    _, decoder = build(family)
    prefix = random_ids(20)
    cache, slot = filled(decoder, prefix)
    run(decoder, cache, [TREE], [slot], Need())
    cache.commit(slot, path)
    plain, plain_slot = filled(decoder, prefix)
    for node in path:
        run(decoder, plain, [DraftTree.chain([TREE.token_ids[node]])], [plain_slot], Need())
        plain.commit(plain_slot, [0])
    assert cache.length(slot) == plain.length(plain_slot) == 20 + len(path)
    for speculative, expected in zip(cache.rows(slot), plain.rows(plain_slot), strict=True):
        torch.testing.assert_close(speculative, expected, **CLOSE)


def test_draws_come_in_the_order_asked_for_and_equal_draws_from_the_logits():
    _, decoder = build("llama")
    cache, slot = filled(decoder, random_ids(20))
    warps = [Warp(), Warp(0.8), Warp(1.5, top_k=5), Warp(), Warp(1.0, top_p=0.6), Warp(0.7, min_p=0.1)]
    draws = [Draw(node, warp, 1000 + node) for node, warp in zip([6, 2, 2, 0, 5, 1], warps, strict=True)]
    output = run(decoder, cache, [TREE], [slot], Need(draws=draws, logits=range(7)))
    assert output.choices == [draw(output.logits[d.node], d.warp, d.key) for d in draws]
    assert len(set(output.choices)) > 1


def test_a_greedy_draw_takes_the_lowest_id_of_equals():
    """Tokens 20 and 60 share an embedding, hence the highest logit; so do 30 and 31, lower."""
    spec = tiny_spec(tied_head=False)
    weights = TinyWeights(spec, 3)
    decoder = TorchRuntime().decoder(spec, weights)
    hidden = torch.nn.functional.normalize(linear_hidden(decoder, [5])[0], dim=0)
    weights.tensors["head.weight"][[60, 20]] = hidden * 9
    weights.tensors["head.weight"][[31, 30]] = hidden * 8
    decoder = TorchRuntime().decoder(spec, weights)
    cache = decoder.new_cache()
    need = Need(draws=[Draw(0, Warp(), 0)], top_k=4, top_nodes=[0])
    output = run(decoder, cache, [DraftTree.chain([5])], [cache.open(1)], need)
    assert output.choices == [20]
    assert output.top_ids.tolist() == [[20, 60, 30, 31]]


def linear_hidden(decoder, token_ids):
    cache = decoder.new_cache()
    tree = DraftTree.chain(token_ids)
    return run(decoder, cache, [tree], [cache.open(len(token_ids))], Need(hidden=True)).hidden.clone()


def test_top_tokens_are_those_of_the_wanted_nodes_likeliest_first():
    _, decoder = build("qwen2")
    cache, slot = filled(decoder, random_ids(20))
    output = run(decoder, cache, [TREE], [slot], Need(logits=range(7), top_k=4, top_nodes=[5, 1]))
    logprobs = torch.log_softmax(output.logits[[5, 1]], dim=-1)
    assert output.top_ids.tolist() == logprobs.sort(dim=-1, descending=True).indices[:, :4].tolist()
    torch.testing.assert_close(output.top_logprobs, logprobs.gather(-1, output.top_ids), rtol=0, atol=1e-5)


def test_only_what_is_needed_comes_back():
    _, decoder = build("llama")
    cache, slot = filled(decoder, random_ids(4))
    output = run(decoder, cache, [TREE], [slot], Need())
    assert output.choices == []
    assert (output.logits, output.top_ids, output.top_logprobs, output.taps, output.hidden) == (None,) * 5
    some = run(decoder, cache, [TREE], [slot], Need(logits=[4, 2])).logits.clone()
    every = run(decoder, cache, [TREE], [slot], Need(logits=range(7), hidden=True)).logits
    torch.testing.assert_close(some, every[[4, 2]], **CLOSE)
    assert some.dtype == torch.float32


def test_inputs_replace_the_embedding():
    weights, decoder = build("llama")
    token_ids = random_ids(10)
    rows = weights.tensor("embed.weight")[token_ids]
    cache = decoder.new_cache()
    batch = pack([DraftTree.chain([0] * 10)], [0], [cache.open(10)])
    output = decoder.forward(batch, cache, Need(logits=range(10)), inputs=rows)
    torch.testing.assert_close(output.logits, linear_logits(decoder, token_ids), **CLOSE)


def test_the_first_layers_read_the_cache_of_the_whole():
    """Three layers of six, run on the six-layer cache, equal a model of those three layers."""
    spec = tiny_spec(num_layers=6)
    whole_weights, part_weights = TinyWeights(spec, 4), TinyWeights(tiny_spec(num_layers=3), 5)
    for name in part_weights.tensors:
        part_weights.tensors[name] = whole_weights.tensors[name]
    whole, part = TorchRuntime().decoder(spec, whole_weights), TorchRuntime().decoder(part_weights.spec, part_weights)
    cache, slot = filled(whole, random_ids(20))
    exit_early = whole.first_layers(3)
    assert exit_early.spec.num_layers == 3
    logits = run(exit_early, cache, [TREE], [slot]).logits
    own_cache, own_slot = filled(part, random_ids(20))
    torch.testing.assert_close(logits, run(part, own_cache, [TREE], [own_slot]).logits, **CLOSE)
    with pytest.raises(ConfigError, match="7 first layers are wanted; allowed: 1 to 6"):
        whole.first_layers(7)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float16", 0.01), ("float64", 1e-6)])
def test_other_dtypes_compute_the_same_model(dtype, tolerance):
    """Relative error of about the dtype's own rounding times a few layers (2^-8, 2^-11); float64 within float32's."""
    weights = TinyWeights(MODELS["qwen3"], 1)
    decoder = TorchRuntime(dtype=dtype).decoder(weights.spec, weights)
    _, reference = build("qwen3")
    token_ids = random_ids(30)
    expected = linear_logits(reference, token_ids)
    assert (linear_logits(decoder, token_ids) - expected).norm() / expected.norm() < tolerance


def test_a_model_without_head_and_embedding_gives_hidden_rows():
    weights = TinyWeights(tiny_spec(tied_head=False), 1)
    for name in ("embed.weight", "head.weight"):
        del weights.tensors[name]
    decoder = TorchRuntime().decoder(weights.spec, weights)
    cache = decoder.new_cache()
    batch = pack([DraftTree.chain([0, 0])], [0], [cache.open(2)])
    inputs = torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
    assert decoder.forward(batch, cache, Need(hidden=True), inputs=inputs).hidden.shape == (2, 48)
    with pytest.raises(ConfigError, match="no head"):
        decoder.forward(batch, cache, Need(logits=[0]), inputs=inputs)
    with pytest.raises(ConfigError, match="no embedding of its own"):
        decoder.forward(batch, cache, Need(hidden=True))


def test_wrong_input_is_refused():
    _, decoder = build("llama")
    cache, slot = filled(decoder, random_ids(4), spare=2)
    with pytest.raises(ConfigError, match="token ids from 3 to 97; the model knows 0 to 96"):
        run(decoder, cache, [DraftTree.chain([3, 97])], [slot])
    with pytest.raises(ConfigError, match=r"inputs have shape \(1, 48\); this pass wants \(2, 48\)"):
        decoder.forward(pack([DraftTree.chain([3, 4])], [4], [slot]), cache, Need(), inputs=torch.zeros(1, 48))
    with pytest.raises(CapacityError, match="holds 4 of 6 rows; 3 nodes do not fit; reserve 7 rows"):
        run(decoder, cache, [DraftTree.chain([1, 2, 3])], [slot])
    with pytest.raises(AssertionError, match="holds 4 rows, the batch says 3"):
        decoder.forward(pack([DraftTree.chain([3])], [3], [slot]), cache, Need())


def test_a_checkpoint_that_does_not_fit_the_spec_is_refused():
    weights = TinyWeights(tiny_spec(), 0)
    weights.tensors["layers.1.k.weight"] = torch.zeros(8, 48)
    with pytest.raises(CheckpointError, match=r"'layers.1.k.weight' has shape \(8, 48\).*ask for \(16, 48\)"):
        TorchRuntime().decoder(weights.spec, weights)
    del weights.tensors["layers.1.k.weight"]
    with pytest.raises(CheckpointError, match="no tensor 'layers.1.k.weight'"):
        TorchRuntime().decoder(weights.spec, weights)


def test_a_dtype_or_device_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="'int8'; known: bfloat16, float16, float32, float64"):
        TorchRuntime(dtype="int8")
    with pytest.raises(ConfigError, match="device is 'abacus'"):
        TorchRuntime(device="abacus")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_projection_is_the_linear_map(dtype):
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(33, 20, generator=generator), torch.randn(33, generator=generator)
    inputs = torch.randn(5, 20, generator=generator)
    projection = TorchRuntime(dtype=dtype).projection(weight, bias)
    tolerance = {"float32": 1e-5, "bfloat16": 0.1}[dtype]  # bfloat16: 2^-9 relative of values up to 20
    torch.testing.assert_close(projection(inputs).float(), inputs @ weight.T + bias, rtol=0, atol=tolerance)
    assert projection.num_bytes == (33 * 20 + 33) * getattr(torch, dtype).itemsize
    with pytest.raises(ConfigError, match="wanted: "):
        TorchRuntime().projection(weight[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_blocked_weight_gives_the_products_of_the_plain_one(dtype, monkeypatch):
    """The fast form against the general one, which other devices and builds of torch use."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(40, 24, generator=generator), torch.randn(40, generator=generator)
    fast = TorchLinear(weight, bias, torch.device("cpu"), dtype)
    monkeypatch.setattr("foreword.runtime.torch_linear.can_block", lambda dtype: False)
    plain = TorchLinear(weight, bias, torch.device("cpu"), dtype)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.13}[dtype]  # one rounding to 2^-9 of values up to 32
    for num_rows in (1, 2, 8, 33):
        inputs = torch.randn(num_rows, 24, generator=generator, dtype=torch.float32).to(dtype)
        residual = torch.randn(num_rows, 40, generator=generator, dtype=torch.float32).to(dtype)
        torch.testing.assert_close(fast(inputs), plain(inputs), rtol=0, atol=tolerance)
        added = fast.add_to(residual, inputs), plain.add_to(residual, inputs)
        torch.testing.assert_close(*added, rtol=0, atol=tolerance)


def test_loading_keeps_a_matching_embedding_and_counts_every_weight():
    weights, decoder = build("llama_untied")
    assert decoder._embedding.data_ptr() == weights.tensor("embed.weight").data_ptr()
    norms = 4 * (2 * weights.spec.num_layers + 1) * weights.spec.hidden_size  # norm weights are held twice
    assert decoder.num_weight_bytes == 4 * weights.spec.num_parameters + norms
