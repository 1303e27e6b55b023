"""Hugging Face folders: every family opens to its spec and its very tensors; what is wrong is said."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from foreword.checkpoint import open_checkpoint
from foreword.config import Llama3RopeScaling, RopeSpec
from foreword.errors import CheckpointError, UnsupportedModelError
from tests.support.tiny_files import config_json, write_folder
from tests.support.tiny_models import FAMILIES, LLAMA3_ROPE, TinyWeights, hf_config, hf_name, tiny_spec


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", TinyWeights(tiny_spec()))


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_its_spec_and_its_tensors(tmp_path, family, tied, num_shards):
    weights = TinyWeights(tiny_spec(family, tied_head=tied))
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", weights, num_shards=num_shards), cache_dir=tmp_path)
    assert checkpoint.spec == weights.spec
    assert checkpoint.dtype_name == "float32"
    assert checkpoint.num_bytes == sum(tensor.nbytes for tensor in weights.tensors.values())
    for name, tensor in weights.tensors.items():
        assert checkpoint.has_tensor(name)
        assert torch.equal(checkpoint.tensor(name), tensor), name
    assert checkpoint.has_tensor("head.weight") is not tied
    assert not checkpoint.has_tensor("layers.0.o.bias")


def test_tensors_keep_the_dtype_they_are_stored_in(tmp_path):
    weights = TinyWeights(tiny_spec())
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", weights, dtype=torch.bfloat16), cache_dir=tmp_path)
    assert checkpoint.dtype_name == "bfloat16"
    tensor = checkpoint.as_dtype("float32").tensor("layers.1.up.weight")
    assert torch.equal(tensor, weights.tensor("layers.1.up.weight").bfloat16())


@pytest.mark.parametrize("rope", [RopeSpec(theta=5e5), RopeSpec(theta=1e4, linear_factor=4.0), LLAMA3_ROPE])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_is_read_as_the_same_spec(tmp_path, family, rope):
    """The spelling of the transformers release at hand (5: `rope_parameters`)."""
    spec = tiny_spec(family, rope=rope)
    write_folder(tmp_path, TinyWeights(spec))
    hf_config(spec).save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=None)
    assert open_checkpoint(tmp_path, cache_dir=tmp_path).spec == spec


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_the_older_spelling_of_rope_scaling_is_read(folder, tmp_path, key):
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    edit_config(folder, rope_theta=5e5, rope_scaling={key: "llama3", **scaling})
    expected = Llama3RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=8192)
    assert open_checkpoint(folder, cache_dir=tmp_path).spec.rope == RopeSpec(theta=5e5, llama3=expected)
    edit_config(folder, rope_scaling={key: "linear", "factor": 2.0})
    assert open_checkpoint(folder, cache_dir=tmp_path).spec.rope == RopeSpec(theta=5e5, linear_factor=2.0)


def test_sizes_that_the_configuration_leaves_out_follow_from_the_others(tmp_path):
    spec = tiny_spec(num_kv_heads=6)
    folder = write_folder(tmp_path / "m", TinyWeights(spec), head_dim=None, num_key_value_heads=None)
    assert open_checkpoint(folder, cache_dir=tmp_path).spec == spec


def test_a_sliding_window_is_every_layers_own(folder, tmp_path):
    edit_config(folder, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=100)
    spec = open_checkpoint(folder, cache_dir=tmp_path).spec
    assert (spec.family, spec.context_len, [layer.window for layer in spec.layers]) == ("llama", 512, [100] * 3)
    edit_config(folder, sliding_window=None)
    assert open_checkpoint(folder, cache_dir=tmp_path).spec.layers == ()


def test_a_window_of_qwen_counts_only_when_it_is_in_use(tmp_path):
    folder = write_folder(tmp_path / "m", TinyWeights(tiny_spec("qwen2")), sliding_window=100)
    assert open_checkpoint(folder, cache_dir=tmp_path).spec.layers == ()
    edit_config(folder, use_sliding_window=True, max_window_layers=2)
    spec = open_checkpoint(folder, cache_dir=tmp_path).spec
    assert [layer.window for layer in spec.layers] == [None, None, 100]


def test_all_end_tokens_count(folder, tmp_path):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8, 9]}))
    edit_config(folder, eos_token_id=8)
    assert open_checkpoint(folder, cache_dir=tmp_path).eos_token_ids == (7, 8, 9)
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(folder, cache_dir=tmp_path).eos_token_ids == (8,)


def test_unused_tables_and_layers_beyond_the_last_are_passed_over(tmp_path):
    weights = TinyWeights(tiny_spec())
    folder = write_folder(tmp_path / "m", weights)
    state = {hf_name(name): tensor for name, tensor in weights.tensors.items()}
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(state, folder / "model.safetensors")
    edit_config(folder, num_hidden_layers=2)
    assert open_checkpoint(folder, cache_dir=tmp_path).spec == replace(weights.spec, num_layers=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt_bigcode"}, r"'gpt_bigcode' .*supported: llama, mistral, .*qwen2, qwen3"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by 'gptq'.*supported: .*GGUF"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
            "rope type 'dynamic'.*default, linear, llama3, yarn, longrope",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "several rotary embeddings"),
        ({"model_type": "qwen2", "mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'.*supported: 'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"logits_scaling": 8.0}, "logits_scaling = 8.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    ],
)
def test_what_is_not_supported_is_named(folder, tmp_path, changes, words):
    edit_config(folder, **changes)
    with pytest.raises(UnsupportedModelError, match=words):
        open_checkpoint(folder, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, "hidden_size in config.json is None"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers .*'three'"),
        ({"vocab_size": 0}, "vocab_size in config.json is 0"),
        ({"num_key_value_heads": 4}, "6 query heads cannot be shared by 4"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "low_freq_factor in rope_scaling in config.json is missing",
        ),
        ({"intermediate_size": 81}, r"mlp.gate_proj.weight has shape \[80, 48\], .*asks for \[81, 48\]"),
        ({"num_hidden_layers": 2**31 - 1}, "holds 29 tensors, too few for the 2147483647 layers"),
        ({"num_hidden_layers": 4}, "lacks 9 of the 38 tensors .*model.layers.3"),
        ({"tie_word_embeddings": False}, "lacks 1 of the .*lm_head.weight"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder, tmp_path, changes, words):
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(folder, cache_dir=tmp_path)


def test_a_parameter_that_would_be_left_out_is_refused(tmp_path):
    weights = TinyWeights(tiny_spec())
    folder = write_folder(tmp_path / "m", weights)
    state = {hf_name(name): tensor for name, tensor in weights.tensors.items()}
    save_file({**state, "model.layers.1.self_attn.o_proj.bias": torch.zeros(48)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers.1.self_attn.o_proj.bias"):
        open_checkpoint(folder, cache_dir=tmp_path)


def test_a_dtype_that_cannot_be_read_is_named(tmp_path):
    weights = TinyWeights(tiny_spec())
    folder = write_folder(tmp_path / "m", weights, dtype=torch.float8_e4m3fn)
    with pytest.raises(CheckpointError, match="dtype F8_E4M3.*float32, float16, bfloat16"):
        open_checkpoint(folder, cache_dir=tmp_path)


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, tmp_path, damage):
    (folder / damage).unlink()
    with pytest.raises(CheckpointError, match=damage):
        open_checkpoint(folder, cache_dir=tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_configuration_that_is_no_json_object_is_refused(folder, tmp_path, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(folder, cache_dir=tmp_path)


def test_pickled_weights_are_refused(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin.*supported: safetensors and GGUF"):
        open_checkpoint(folder, cache_dir=tmp_path)


def test_missing_shards_index_and_listed_tensors_are_named(tmp_path):
    weights = TinyWeights(tiny_spec())
    folder = write_folder(tmp_path / "m", weights, num_shards=3)
    shard = folder / "model-00002-of-00003.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of 3 weight files: model-00002-of-00003"):
        open_checkpoint(folder, cache_dir=tmp_path)
    shard.write_bytes(content)
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    save_file({"other": torch.zeros(1)}, shard)
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003.safetensors lacks tensor model"):
        open_checkpoint(folder, cache_dir=tmp_path)
    index.unlink()
    with pytest.raises(CheckpointError, match=r"3 safetensors files .*neither model.safetensors nor"):
        open_checkpoint(folder, cache_dir=tmp_path)
    index.write_text(text.replace("weight_map", "wait_map"))
    with pytest.raises(CheckpointError, match="no weight_map"):
        open_checkpoint(folder, cache_dir=tmp_path)


def test_a_file_cut_anywhere_is_refused_at_open(folder, tmp_path):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    header_end = 8 + int.from_bytes(content[:8], "little")
    for length in [0, 1, 7, 8, 9, header_end // 2, header_end - 1, header_end, header_end + 1, len(content) - 1]:
        file.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors.*fetch it again"):
            open_checkpoint(folder, cache_dir=tmp_path)
    file.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="left over"):
        open_checkpoint(folder, cache_dir=tmp_path)


def test_a_header_whose_sizes_contradict_each_other_is_refused(folder, tmp_path):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    damaged = content.replace(b'"shape":[97,48]', b'"shape":[97,47]', 1)
    assert damaged != content
    file.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"model.embed_tokens.weight of shape \[97, 47\]"):
        open_checkpoint(folder, cache_dir=tmp_path)


def test_the_fingerprint_follows_the_weights(folder, tmp_path):
    first = open_checkpoint(folder, cache_dir=tmp_path).fingerprint
    assert open_checkpoint(folder, cache_dir=tmp_path).fingerprint == first
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert open_checkpoint(folder, cache_dir=tmp_path).fingerprint != first
    content[-1] ^= 1
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config_json(tiny_spec())))
    (tmp_path / "copy" / "model.safetensors").write_bytes(content)
    assert open_checkpoint(tmp_path / "copy", cache_dir=tmp_path).fingerprint == first


def test_a_config_without_a_model_type_is_named(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"has no model_type in its config\.json"):
        open_checkpoint(folder, cache_dir=folder)
