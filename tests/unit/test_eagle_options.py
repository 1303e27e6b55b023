"""What some EAGLE networks compute before fc, and several layers: the first draft step is a float reference's, on both runtimes."""

import json

import pytest
import torch

from foreword.cli.main import main
from foreword.draft.heads.eagle import Eagle3Options, EagleDrafter
from foreword.draft.heads.eagle_fusion import StreamNorms
from foreword.draft.heads.eagle_network import stream_norm, taps_of
from foreword.errors import CheckpointError, UnsupportedModelError
from foreword.runtime.base import Need
from foreword.runtime.select import native_problem
from foreword.runtime.torch_runtime import TorchRuntime
from foreword.sampling.params import SamplingParams
from foreword.tree.draft_tree import DraftTree
from foreword.tree.pack import pack
from tests.support.drafters import Checked
from tests.support.eagle_heads import (
    head_config,
    head_tensors,
    network,
    reference_layer,
    reference_norms,
    save_head,
    stream_norms,
)  # fmt: skip
from tests.support.tiny_llm import write_tiny_llm
from tests.support.tiny_models import TinyWeights, tiny_spec
from tests.support.toy_engine import make_engine, run

TARGET = tiny_spec("llama", num_layers=8)
WEIGHTS = TinyWeights(TARGET)
TEXT = [5, 17, 3, 42, 8, 11, 60]
PROMPTS = [TEXT[:4], [1, 2, 3, 1, 2, 3, 1], [90]]
# What config.json says: our own words, the newer speculators' defaults, and options nested as NVIDIA nests them.
CONFIGS = {
    "one norm": {"norm_before_fc": True},
    "a norm a stream": {"fc_norm": True, "norm_before_fc": False},
    "speculators": {"norm_before_fc": True, "fc_norm": False, "norm_before_residual": True, "norm_output": True},
    "nested": {"eagle_config": {"norm_before_fc": True, "use_aux_hidden_state": True}},
}


@pytest.fixture(scope="module", params=["torch", "native"])
def runtime(request, tmp_path_factory):
    if request.param == "torch":
        return TorchRuntime(dtype="float64")
    if (problem := native_problem()) is not None:
        pytest.skip(f"native kernels are not available: {problem}")
    from foreword.runtime.native_runtime import NativeRuntime

    return NativeRuntime(threads=1, cache_dir=tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def decoder(runtime):
    return runtime.decoder(TARGET, WEIGHTS)


def tensors_for(config):
    kind = stream_norm(config)
    return head_tensors(TARGET, True, seed=7) | ({} if kind is None else stream_norms(TARGET, kind))


def streams_of(decoder):
    """Of the text without its last token, (6, 3 * hidden)."""
    cache, taps = decoder.new_cache(), taps_of({}, TARGET)
    batch = pack([DraftTree.chain(TEXT[:-1])], [0], [cache.open(16)])
    return decoder.forward(batch, cache, Need(taps=taps)).taps.flatten(1).clone()


def drafted_logits(made, streams):
    """Of the first draft step: after the pairs of the text."""
    layer = made.reader.decoder
    cache, inputs = layer.new_cache(), made.reader.fusion.begin(streams, TEXT[1:])
    batch = pack([DraftTree.chain(TEXT[1:])], [0], [cache.open(16)])
    return layer.forward(batch, cache, Need(logits=[len(TEXT) - 2]), inputs).logits[0].double()


def reference_logits(tensors, streams, config, num_layers=1):
    """The same, written out in float64."""
    tensors = {name: tensor.double() for name, tensor in tensors.items()}
    inputs = reference_norms(streams.double(), tensors, TARGET.norm_eps) @ tensors["fc.weight"].T
    embedded = WEIGHTS.tensor("embed.weight").double()[TEXT[1:]]
    states = reference_layer(TARGET, tensors, inputs, embedded, config)
    for layer in range(1, num_layers):
        states = reference_layer(TARGET, tensors, states, None, config, layer)
    normed = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + TARGET.norm_eps) * tensors["norm.weight"]
    return normed[-1] @ tensors["lm_head.weight"].T


def assert_near(logits, expected, runtime):
    if runtime.name == "torch":
        torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    else:  # as near as eight bits are
        assert float(torch.cosine_similarity(logits, expected, dim=0)) > 0.999


@pytest.mark.parametrize("name", CONFIGS)
def test_the_first_draft_step_is_the_references(name, runtime, decoder, tmp_path):
    config, streams = CONFIGS[name], streams_of(decoder)
    tensors = tensors_for(config)
    made = network(save_head(tmp_path, head_config(TARGET, True, **config), tensors), True, TARGET, WEIGHTS, runtime)
    expected = reference_logits(tensors, streams, config)
    assert_near(drafted_logits(made, streams), expected, runtime)
    bare = {key: tensor for key, tensor in tensors.items() if "input_norm" not in key and "fc_norm" not in key}
    without = reference_logits(bare, streams, config)
    assert float(torch.cosine_similarity(without, expected, dim=0)) < 0.9  # leaving the norm out would show


@pytest.mark.parametrize("name", ["one norm", "a norm a stream"])
def test_tokens_are_those_of_plain_decoding(name, runtime, decoder, tmp_path):
    folder = save_head(tmp_path, head_config(TARGET, True, **CONFIGS[name]), tensors_for(CONFIGS[name]))
    for options in ({}, {"temperature": 0.8, "seed": 3}):
        params, accepted = [SamplingParams(max_tokens=8, **options)] * 3, []
        plain = [request.new_ids for request in run(make_engine(decoder), PROMPTS, params)]
        for batch_size in (1, 3):
            made = network(folder, True, TARGET, WEIGHTS, runtime)
            drafter = Checked(EagleDrafter(made, Eagle3Options(draft_tree_depth=3), "eagle3"))
            requests = run(make_engine(decoder, drafter, num_nodes=5, batch_size=batch_size), PROMPTS, params)
            assert [request.new_ids for request in requests] == plain
            assert drafter.num_drafted > 20
            accepted.append([(request.stats.num_steps, request.stats.accepted_tokens) for request in requests])
        if runtime.name == "native":
            assert accepted[0] == accepted[1]  # what is drafted for one does not depend on the others


@pytest.mark.parametrize("width", [144, 145, 7, 1])
def test_the_norm_of_a_row_has_the_same_bits_in_any_company(width):
    generator = torch.Generator().manual_seed(1)
    rows, weight = torch.randn(9, 2 * width, generator=generator), torch.randn(width, generator=generator)
    norms = StreamNorms([weight, weight], 1e-5)
    together = norms(rows)
    assert all(torch.equal(norms(row[None])[0], wanted) for row, wanted in zip(rows, together, strict=True))
    exact = torch.cat(
        [torch.nn.functional.rms_norm(half, (width,), weight.double(), 1e-5) for half in rows.double().chunk(2, 1)], 1
    )
    torch.testing.assert_close(together, exact.float())
    assert norms(rows.bfloat16()).dtype == torch.bfloat16


def second_layer(norm_names):
    """Tensors of a plain layer, its first norm under these names."""
    made = {
        name.replace("layers.0.", "layers.1."): tensor
        for name, tensor in head_tensors(TARGET, False, seed=11).items()
        if name.startswith("layers.0.")
    }
    norm = 1 + 0.5 * torch.randn(TARGET.hidden_size, generator=torch.Generator().manual_seed(12))
    return made | {f"layers.1.{name}.weight": norm.clone() for name in norm_names}


@pytest.mark.parametrize(
    "names", [["input_layernorm"], ["hidden_norm"], ["input_layernorm", "hidden_norm"]], ids="+".join
)
def test_two_layers_whatever_their_norm_is_called(names, runtime, decoder, tmp_path):
    """Engines read the second layer's first norm under one name or the other; some files hold it under both."""
    config = head_config(TARGET, True, num_hidden_layers=2)
    tensors = head_tensors(TARGET, True, seed=7) | second_layer(names)
    made = network(save_head(tmp_path, config, tensors), True, TARGET, WEIGHTS, runtime)
    streams = streams_of(decoder)
    expected = reference_logits(tensors | second_layer(["input_layernorm"]), streams, {}, num_layers=2)
    assert_near(drafted_logits(made, streams), expected, runtime)


def test_misfits_are_refused_with_the_reason(tmp_path):
    def refused(error, message, config, changed=None, tensors=None, is_eagle3=True):
        held = (tensors_for(config) if tensors is None else tensors) | (changed or {})
        folder = save_head(tmp_path, head_config(TARGET, is_eagle3, **config), held)
        with pytest.raises(error, match=message):
            network(folder, is_eagle3, TARGET, WEIGHTS, TorchRuntime(dtype="float64"))

    one, each = CONFIGS["one norm"], CONFIGS["a norm a stream"]
    plain = head_tensors(TARGET, True)
    refused(CheckpointError, "no tensor 'input_norm.weight'", one, tensors=plain)
    refused(CheckpointError, r"no tensor 'fc_norm\.0\.weight'", each, tensors=plain)
    refused(CheckpointError, r"'input_norm.weight' has shape \[48\]", one, {"input_norm.weight": torch.ones(48)})
    refused(CheckpointError, r"'fc_norm.3.weight', .* sets fc_norm, and", each, {"fc_norm.3.weight": torch.ones(48)})
    refused(CheckpointError, "sets neither norm_before_fc nor fc_norm", {}, stream_norms(TARGET, "norm_before_fc"))
    both = {"norm_before_fc": True, "eagle_config": {"fc_norm": True}}
    refused(CheckpointError, "sets norm_before_fc and fc_norm; allowed: one of them", both, tensors=plain)
    bare = head_tensors(TARGET, False)
    refused(UnsupportedModelError, "fc_norm, which only EAGLE-3", {"fc_norm": True}, tensors=bare, is_eagle3=False)
    two = second_layer(["input_layernorm"]) | {"layers.1.hidden_norm.weight": torch.ones(48)}
    refused(UnsupportedModelError, r"does not use: layers\.1\.hidden_norm", {"num_hidden_layers": 2}, two)


@pytest.mark.usefixtures("without_shape_checks")
def test_inspect_names_the_options(tmp_path, capsys):
    files = write_tiny_llm(tmp_path)
    config = json.loads((files.eagle3 / "config.json").read_text()) | {"fc_norm": True, "norm_output": True}
    spec = files.load().checkpoint.spec
    tensors = head_tensors(spec, True) | stream_norms(spec, "fc_norm")
    folder = save_head(tmp_path / "normed", config, tensors)
    assert main(["inspect", str(folder), "--model", str(files.target), "--runtime", "torch", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["options"], facts["num_layers"]) == (["fc_norm", "norm_output"], 1)
    assert facts["fit"]["fits"]
    assert facts["fit"]["measured"]["tokens_per_step"] >= 1
