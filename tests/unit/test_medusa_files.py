"""Medusa heads in every layout that is about, with what goes wrong in them; misfits are refused with the reason."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from foreword.checkpoint.drafter_folder import tensors_of
from foreword.draft.heads.medusa_files import open_heads
from foreword.draft.heads.medusa_network import check_fit, load_heads
from foreword.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedModelError
from foreword.runtime.torch_runtime import TorchRuntime
from tests.support.medusa_heads import legacy_names, random_heads, reference_logits, save_heads, vllm_config
from tests.support.tiny_models import TinyWeights, tiny_spec

TARGET = tiny_spec("llama", num_layers=2)
WEIGHTS = TinyWeights(TARGET)
RUNTIME = TorchRuntime(dtype="float64")
LEGACY = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "somebody/model"}
HIDDEN = torch.randn(3, TARGET.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def without_outputs(heads):
    return {name: tensor for name, tensor in heads.items() if not name.startswith("lm_heads")}


def full_model(heads):
    """The heads beside the tensors of the model that they were tuned with."""
    return {"model.embed_tokens.weight": torch.zeros(3, 4), **legacy_names(heads, "medusa_head.")}


def shared(heads):
    """As the authors' code has it: the layers of a head are one, saved several times."""
    return heads | {
        name.replace("layers.0", "layers.1"): tensor for name, tensor in heads.items() if ".layers.0." in name
    }


HEADS = random_heads(TARGET, seed=2, num_heads=4)
LAYOUTS = {
    "legacy.pt": ("legacy", LEGACY, legacy_names(HEADS), "medusa_lm_head.pt", HEADS),
    "legacy.safetensors": ("legacy", LEGACY, legacy_names(HEADS), "medusa_lm_head.safetensors", HEADS),
    "prefixed": ("legacy", LEGACY, legacy_names(HEADS, "medusa_head."), "medusa_lm_head.pt", HEADS),
    "shared layers": ("legacy", LEGACY, legacy_names(shared(HEADS)), "medusa_lm_head.pt", shared(HEADS)),
    "full model": ("full model", LEGACY, full_model(HEADS), "model.safetensors", HEADS),
    "vllm": ("vllm", vllm_config(TARGET, HEADS), HEADS, "model.safetensors", HEADS),
    "vllm.bin": ("vllm", vllm_config(TARGET, HEADS), HEADS, "pytorch_model.bin", HEADS),
    "vllm prefixed": (
        "vllm", vllm_config(TARGET, HEADS), {f"medusa_heads.{n}": t for n, t in HEADS.items()}, "model.safetensors", HEADS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_is_recognised_and_computes_what_it_holds(kind, tmp_path):
    layout, config, tensors, name, heads = LAYOUTS[kind]
    files = open_heads(save_heads(tmp_path, config, tensors, name))
    assert files.layout == layout
    assert len(files.blocks) == 4  # the legacy config says 2: the file counts
    assert bool(files.notes) == (config is LEGACY)
    network = load_heads(files, TARGET, WEIGHTS, RUNTIME)
    assert network.heads.num_heads == 4
    found = network.heads(HIDDEN, 4)
    for head in range(4):
        torch.testing.assert_close(found[:, head].double(), reference_logits(heads, HIDDEN, head), rtol=1e-5, atol=1e-5)


def test_one_file_of_weights_is_enough(tmp_path):
    torch.save(legacy_names(HEADS), tmp_path / "heads.pt")
    files = open_heads(tmp_path / "heads.pt")
    assert (files.layout, len(files.blocks), files.config) == ("legacy", 4, {})
    check_fit(files, TARGET)


def test_shards_are_read_by_their_index(tmp_path):
    names = sorted(full := full_model(HEADS))
    parts = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, part in parts.items():
        save_file({name: full[name].contiguous() for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    folder = save_heads(tmp_path, LEGACY, {}, "unused.pt")
    (folder / "model.safetensors.index.json").write_text(str(index).replace("'", '"'))
    assert open_heads(folder).layout == "full model"
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 weight files: b\.safetensors"):
        open_heads(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../elsewhere.safetensors"}}')
    with pytest.raises(CheckpointError, match="the name of a file beside the index"):
        open_heads(folder)


@pytest.mark.parametrize("tied", [True, False])
def test_heads_without_outputs_use_the_targets(tied, tmp_path):
    target = replace(TARGET, tied_head=tied)
    weights = TinyWeights(target)
    heads = random_heads(target, seed=2, num_heads=2)
    files = open_heads(save_heads(tmp_path, LEGACY, legacy_names(without_outputs(heads)), "medusa_lm_head.safetensors"))
    assert files.layout == "version 2"
    matrix = weights.tensor("embed.weight" if tied else "head.weight")
    found = load_heads(files, target, weights, RUNTIME).heads(HIDDEN, 2)
    for head in range(2):
        wanted = reference_logits(heads | {f"lm_heads.{head}.weight": matrix}, HIDDEN, head)
        torch.testing.assert_close(found[:, head].double(), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="leaves its outputs to the target's head"):
        load_heads(files, target, None, RUNTIME)


def test_one_output_serves_all_heads_and_layers_may_lack_biases(tmp_path):
    heads = random_heads(TARGET, seed=2, num_heads=3, num_layers=2, bias=False, rows=40)
    one = {name: t for name, t in heads.items() if name not in ("lm_heads.1.weight", "lm_heads.2.weight")}
    token_map = torch.randperm(TARGET.vocab_size, generator=torch.Generator().manual_seed(1))[:40]
    config = vllm_config(TARGET, heads, original_lm_head=True)
    files = open_heads(save_heads(tmp_path, config, {**one, "token_map": token_map}))
    network = load_heads(files, TARGET, WEIGHTS, RUNTIME)
    assert network.vocab.ids.tolist() == token_map.tolist()
    found = network.heads(HIDDEN, 3)
    for head in range(3):
        wanted = reference_logits(heads | {f"lm_heads.{head}.weight": heads["lm_heads.0.weight"]}, HIDDEN, head)
        torch.testing.assert_close(found[:, head].double(), wanted, rtol=1e-5, atol=1e-5)
    assert network.heads(HIDDEN, 2).shape == (3, 2, 40)


SMALL = random_heads(replace(TARGET, hidden_size=16), num_heads=2)
MISFITS = {
    "hidden size": (SMALL, {}, CheckpointError, r"layer of shape \[16, 16\]; this target's hidden size is"),
    "vocabulary": (HEADS, {"vocab_size": 12}, CheckpointError, "for a vocabulary of 12 tokens; the target has"),
    "rows": (random_heads(TARGET, rows=50), {}, CheckpointError, "no token_map says which tokens"),
    "map length": (
        HEADS | {"token_map": torch.arange(5)}, {}, CheckpointError, "token_map has 5 entries, the outputs"
    ),
    "map range": (
        random_heads(TARGET, rows=2) | {"token_map": torch.tensor([0, TARGET.vocab_size])},
        {}, CheckpointError, "outside the target's 0 to",
    ),
    "map twice": (
        random_heads(TARGET, rows=2) | {"token_map": torch.tensor([4, 4])}, {}, CheckpointError, "names a token twice"
    ),
    "map of floats": (
        random_heads(TARGET, rows=2) | {"token_map": torch.tensor([1.0, 2.0])}, {}, CheckpointError, "no list of token ids"
    ),
    "output shape": (
        HEADS | {"lm_heads.2.weight": torch.zeros(TARGET.vocab_size, 8)}, {}, CheckpointError, "the output of head 2"
    ),
    "not finite": (
        HEADS | {"blocks.1.layers.0.weight": torch.full((TARGET.hidden_size,) * 2, float("nan"))},
        {}, CheckpointError, "head 1 holds NaN or infinity",
    ),
    "missing layer": (
        {name: t for name, t in HEADS.items() if name != "blocks.1.layers.0.weight"}, {}, CheckpointError, "head 1 has layers"
    ),
    "hydra": ({"hydra_mlp.0.1.linear.weight": torch.zeros(4, 8)}, {}, UnsupportedModelError, "Hydra heads"),
    "eagle": ({"fc.weight": torch.zeros(4, 8)}, {}, UnsupportedModelError, "tensors that Medusa heads do not have"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISFITS)
def test_a_misfit_is_refused_with_the_reason(kind, tmp_path):
    tensors, options, error, reason = MISFITS[kind]
    config = vllm_config(TARGET, tensors if "lm_heads.0.weight" in tensors else HEADS, **options)
    folder = save_heads(tmp_path, config, tensors)
    with pytest.raises(error, match=reason):
        load_heads(open_heads(folder), TARGET, WEIGHTS, RUNTIME)


def test_outputs_of_some_heads_are_refused(tmp_path):
    tensors = {name: tensor for name, tensor in HEADS.items() if name != "lm_heads.1.weight"}
    with pytest.raises(CheckpointError, match="allowed: all, one or none"):
        open_heads(save_heads(tmp_path, vllm_config(TARGET, HEADS), tensors))
    tensors = {name: tensor for name, tensor in HEADS.items() if not name.startswith("blocks.1.")}
    with pytest.raises(CheckpointError, match="allowed: 0, 1, 2 and so on"):
        open_heads(save_heads(tmp_path / "b", vllm_config(TARGET, HEADS), tensors))


class Trap:
    """Would run a command when it is unpickled."""

    def __reduce__(self):
        return (print, ("unpickled",))


def test_a_pickle_that_would_run_something_is_refused(tmp_path, capsys):
    save_heads(tmp_path, LEGACY, {}, "unused.pt")
    torch.save({"0.0.linear.weight": Trap()}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="does not hold plain tensors"):
        open_heads(tmp_path)
    assert capsys.readouterr().out == ""
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="something else than a table of tensors"):
        tensors_of(tmp_path / "list.pt")


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match="there is no drafter"):
        open_heads(tmp_path / "nothing")
    with pytest.raises(ModelNotFoundError, match=r"there is no config\.json in it"):
        open_heads(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no weights: neither medusa_lm_head"):
        open_heads(tmp_path)
