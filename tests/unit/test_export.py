"""Drafters in other engines' files: the names and keys that those engines read, and the same guesses when read back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from foreword.errors import CheckpointError, ConfigError, UnknownNameError
from foreword.export import folder as export_folder
from foreword.export.commands import command
from foreword.export.folder import export
from foreword.export.formats import WRITERS, layout_for
from foreword.export.layout import ENGINES
from foreword.export.source import KINDS, DrafterSource, open_drafter
from foreword.target.load_model import load_model
from tests.support.tiny_files import write_gguf
from tests.support.tiny_llm import write_tiny_llm
from tests.support.tiny_models import TinyWeights

LAYER = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tiny_llm(tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def model(files):
    return files.load()


@pytest.fixture(scope="module")
def drafters(files, model, tmp_path_factory):
    """A folder of each kind, with a draft vocabulary, as `foreword train` writes them."""
    made = {"eagle3": files.eagle3_reduced, "medusa": files.medusa_reduced}
    folder = tmp_path_factory.mktemp("drafters")
    tensors, config = (
        load_file(files.eagle / "model.safetensors"),
        json.loads((files.eagle / "config.json").read_text()),
    )
    ids = torch.arange(
        model.checkpoint.spec.vocab_size
    )  # all of them: a part would be too few to accept any of a random head's
    marks = torch.zeros(model.checkpoint.spec.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    tables = {"d2t": ids - torch.arange(len(ids)), "t2d": marks}
    hidden = model.checkpoint.spec.hidden_size
    own = {
        name: tensor
        for name, tensor in tensors.items()
        if name.split(".")[0] not in ("embed_tokens", "lm_head", "model")
    }
    own |= {"fc.bias": 0.1 * torch.randn(hidden, generator=torch.Generator().manual_seed(1)), **tables}
    made["eagle"] = written(folder / "eagle", own, {**config, "draft_vocab_size": len(ids)})
    spec = replace(model.checkpoint.spec, num_layers=1)
    small = TinyWeights(spec, seed=7).tensors
    names = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    names |= {name: f"self_attn.{name}_proj" for name in "qkvo"} | {n: f"mlp.{n}_proj" for n in ("gate", "up", "down")}
    layer = {
        f"model.layers.0.{names[n.split('.')[2]]}.weight": t for n, t in small.items() if n.startswith("layers.0.")
    }
    target = json.loads((files.target / "config.json").read_text())
    card = {"method": "draft_model", "target_fingerprint": model.checkpoint.fingerprint}
    made["draft_model"] = written(
        folder / "draft",
        {**layer, "model.norm.weight": small["norm.weight"], "d2t": tables["d2t"]},
        {**target, "num_hidden_layers": 1, "draft_vocab_size": len(ids), "foreword": card},
    )
    return made


def written(folder: Path, tensors: dict, config: dict) -> Path:
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def source_of(drafters, model, kind) -> DrafterSource:
    return open_drafter(str(drafters[kind]), model.checkpoint)


HF = [pair for pair in WRITERS if pair[1] != "llama.cpp"]


@pytest.mark.parametrize(("kind", "engine"), HF)
def test_it_is_read_back_and_says_how_it_is_used(kind, engine, drafters, model, tmp_path):
    line = export(source_of(drafters, model, kind), engine, tmp_path / "out", model)
    card = (tmp_path / "out" / "README.md").read_text()
    assert line in card
    assert str(tmp_path / "out") in line
    assert "Read back by foreword" in card
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"], "something is left over"


def test_the_names_that_engines_read(drafters, model):
    """From the description of the formats: an unknown name is an error there, a missing one is drawn at random."""
    found = {pair: layout_for(source_of(drafters, model, pair[0]), pair[1]) for pair in HF}
    bare = {pair: {name.removesuffix(".weight") for name in layout.tensors} for pair, layout in found.items()}
    own = LAYER | {"input_layernorm", "hidden_norm"}
    eagle3 = {"fc", "norm", "lm_head", "d2t", "t2d"}
    for engine in ("vllm", "sglang"):
        names = {name.replace("midlayer.", "layers.0.") for name in bare["eagle3", engine]} - {"embed_tokens"}
        assert names == eagle3 | {f"layers.0.{name}" for name in own}
    assert bare["eagle3", "speculators"] == eagle3 | {"embed_tokens"} | {f"layers.0.{name}" for name in own}
    assert bare["eagle", "vllm"] == {"fc", "embed_tokens"} | {f"layers.0.{name}" for name in LAYER}
    assert bare["eagle", "sglang"] == {"fc", "fc.bias"} | {f"layers.0.{name}" for name in LAYER}
    standing = {f"model.layers.0.{name}" for name in LAYER | {"input_layernorm"}} | {"model.embed_tokens", "model.norm"}
    assert bare["draft_model", "vllm"] - {"lm_head"} == standing
    heads = {name for name in bare["medusa", "vllm"] if not name.startswith("blocks.")}
    assert heads == {f"lm_heads.{i}" for i in range(found["medusa", "vllm"].config["num_heads"])}


def test_layer_ids_in_both_conventions(drafters, model):
    """Top-level ids count layers that were run; SGLang reads the nested ones and adds 1."""
    source = source_of(drafters, model, "eagle3")
    taps = source.config["eagle_aux_hidden_state_layer_ids"]
    config = layout_for(source, "vllm").config
    assert config["eagle_aux_hidden_state_layer_ids"] == taps
    assert [i + 1 for i in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]] == taps
    assert layout_for(source, "speculators").config["eagle_aux_hidden_state_layer_ids"] == taps
    assert config["num_aux_hidden_states"] == len(taps)


def test_the_bias_of_eagle_1_is_in_the_embedding(drafters, model):
    source = source_of(drafters, model, "eagle")
    embedding, fc = model.checkpoint.tensor("embed.weight").double(), source.tensors["fc.weight"].double()
    moved = layout_for(source, "vllm").tensors["embed_tokens.weight"].double()
    of_embedding = fc[:, : embedding.shape[1]]
    expected = embedding @ of_embedding.T + source.tensors["fc.bias"].double()
    torch.testing.assert_close(moved @ of_embedding.T, expected, rtol=0, atol=1e-4)


def test_rows_that_heads_did_not_have_never_win(drafters, model):
    source = source_of(drafters, model, "medusa")
    outputs = [tensor for name, tensor in layout_for(source, "vllm").tensors.items() if name.startswith("lm_head")]
    assert outputs
    for whole in outputs:
        hidden = torch.randn(500, whole.shape[1], generator=torch.Generator().manual_seed(2))
        assert set((hidden @ whole.float().T).argmax(dim=1).tolist()) <= set(source.draft_ids.tolist())


def broken(change):
    """A writer's layout with one fault in it."""

    def layout(source, engine):
        made = WRITERS[source.kind, engine](source, engine)
        return change(made)

    return layout


def without(layout, name):
    return replace(layout, tensors={key: value for key, value in layout.tensors.items() if key != name})


def with_ids(layout, ids):
    return replace(layout, config={**layout.config, "eagle_aux_hidden_state_layer_ids": ids})


def changed(name, change):
    return lambda layout: replace(layout, tensors={**layout.tensors, name: change(layout.tensors[name])})


FAULTS = {
    "a layer further": lambda layout: with_ids(layout, [1, 2, 3]),
    "another order of fc": changed("fc.weight", lambda tensor: tensor.flip(1)),
    "without d2t": lambda layout: without(without(layout, "d2t"), "t2d"),
    "another sign": changed("midlayer.mlp.up_proj.weight", lambda tensor: -tensor),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_export_is_found(fault, drafters, model, tmp_path, monkeypatch):
    monkeypatch.setattr(export_folder, "layout_for", broken(FAULTS[fault]))
    with pytest.raises(CheckpointError):
        export(source_of(drafters, model, "eagle3"), "vllm", tmp_path / "out", model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_does_not_take_is_said_before_anything_is_written(kind, engine, drafters, model, tmp_path):
    if (kind, engine) in HF:
        return
    with pytest.raises(ConfigError) as refused:
        export(source_of(drafters, model, kind), engine, tmp_path / "out", model)
    assert len(str(refused.value)) > 60
    assert list(tmp_path.iterdir()) == []


def test_other_refusals(drafters, model, files, tmp_path):
    source = source_of(drafters, model, "eagle3")
    with pytest.raises(UnknownNameError):
        export(source, "tgi", tmp_path / "out", model)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is there already"):
        export(source, "vllm", tmp_path / "full", model)
    with pytest.raises(ConfigError, match="ngram_lm; what other engines load"):
        open_drafter(str(files.ngram_lm), model.checkpoint)
    draft = drafters["draft_model"]
    other = json.loads((draft / "config.json").read_text())
    other["foreword"]["target_fingerprint"] = "0" * 64
    moved = written(tmp_path / "moved", load_file(draft / "model.safetensors"), other)
    with pytest.raises(ConfigError, match="was trained for"):
        open_drafter(str(moved), model.checkpoint)


def test_a_draft_model_as_gguf(drafters, files, model, tmp_path):
    """Written with the tokenizer of the target's own file, and read back as a file that stands alone."""
    spec = model.checkpoint.spec
    target = write_gguf(
        tmp_path / "target.gguf", TinyWeights(replace(spec, vocab_size=300), seed=4, logit_scale=2.5), tokenizer=True
    )
    loaded = load_model(target, runtime="torch", dtype="float32", threads=1, cache_dir=tmp_path / "cache")
    config = json.loads((drafters["draft_model"] / "config.json").read_text())
    config |= {"vocab_size": 300, "foreword": {"method": "draft_model"}}
    tensors = load_file(drafters["draft_model"] / "model.safetensors")
    draft = written(tmp_path / "draft", tensors, config)
    line = export(open_drafter(str(draft), loaded.checkpoint), "llama.cpp", tmp_path / "out", loaded)
    assert (tmp_path / "out" / "draft.gguf").is_file()
    assert "-md" in line


def test_the_command_for_llama_cpp_has_no_option_that_it_removed():
    """`--draft-max` ends llama-server with an error since 2026."""
    words = command("llama.cpp", "draft_model", "model.gguf", "my draft", 3).split(" --")
    assert words == [
        "llama-server -m model.gguf -md 'my draft'/draft.gguf",
        "spec-type draft-simple",
        "spec-draft-n-max 3",
    ]
