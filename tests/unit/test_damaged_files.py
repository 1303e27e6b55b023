"""Damaged and senseless files: one line that says which file, which value, what is allowed; never a traceback."""

import json
import re

import numpy as np
import pytest
import torch

from foreword.checkpoint import open_checkpoint
from foreword.checkpoint.reading import reading
from foreword.checkpoint.typed_keys import Options
from foreword.config import Llama3RopeScaling, ModelSpec, RopeSpec
from foreword.errors import CheckpointError, ConfigError, ForewordError, LoadError, ModelNotFoundError
from foreword.sampling.params import SamplingParams
from tests.support.tiny_files import GGUF_SIZES, write_folder, write_gguf
from tests.support.tiny_llm import write_tiny_llm
from tests.support.tiny_models import TinyWeights, tiny_spec

DEEP = "[" * 200_000
DIGITS = "1" * 5_000
# No value of config.json's options, each as JSON text.
NONSENSE = ["null", '"abc"', "1" + "0" * 400, "-1", "0", "1.5", "1e999", "NaN", "[]", "{}", "true", "[[1]]", '""']
KEYS = [
    "architectures", "model_type", "hidden_act", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps",
    "rope_theta", "tie_word_embeddings", "eos_token_id", "sliding_window", "use_sliding_window", "rope_scaling",
    "rope_parameters", "attention_bias", "mlp_bias", "partial_rotary_factor", "quantization_config", "foreword",
]  # fmt: skip
ROPE_KEYS = ["rope_type", "type", "rope_theta", "factor", "low_freq_factor", "original_max_position_embeddings"]


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", TinyWeights(tiny_spec()))


def outcome(path, cache):
    """The spec, or the one line that says what is wrong."""
    try:
        return open_checkpoint(path, cache_dir=cache).spec
    except ForewordError as error:
        found = error
    assert isinstance(found, LoadError)
    assert "\n" not in str(found)
    assert len(str(found)) < 1000
    return str(found)


@pytest.mark.parametrize("key", KEYS)
def test_every_option_of_config_json_is_read_by_its_type(folder, tmp_path, key):
    config = json.loads((folder / "config.json").read_text())
    whole = outcome(folder, tmp_path)
    for text in NONSENSE:
        (folder / "config.json").write_text(json.dumps({**config, key: "@"}).replace('"@"', text))
        found = outcome(folder, tmp_path)
        if isinstance(
            found, ModelSpec
        ):  # what a missing option means, an option of no number, or another sensible value
            changed = {"max_position_embeddings", "sliding_window", "rope_theta", "rms_norm_eps", "tie_word_embeddings"}
            assert found == whole or key in changed, text
            assert key != "rms_norm_eps" or text in ("true", "1.5") or found == whole, text
        else:
            assert str(folder) in found


@pytest.mark.parametrize("key", ROPE_KEYS)
def test_every_option_of_rope_scaling_is_read_by_its_type(folder, tmp_path, key):
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    for text in NONSENSE:
        changed = json.dumps({**config, "rope_scaling": {**scaling, key: "@"}}).replace('"@"', text)
        (folder / "config.json").write_text(changed)
        found = outcome(folder, tmp_path)
        if isinstance(found, ModelSpec):
            assert key == "type" or text in ("null", "1.5"), text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rms_norm_eps": None}, "rms_norm_eps in config.json is None; allowed: a finite number"),
        ({"rms_norm_eps": -1.0}, "norm_eps is -1.0; allowed: a finite number above 0, at most 1"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps in config.json is 1000.*; allowed: a finite number"),
        ({"rope_theta": 0}, "theta is 0.0; allowed: a finite number above 0"),
        ({"rope_theta": "abc"}, "rope_theta in config.json is 'abc'"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "linear_factor is 0.0"),
        ({"sliding_window": -5}, "sliding_window in config.json is -5; allowed: a whole number, 1 to"),
        ({"sliding_window": 1.5}, "sliding_window in config.json is 1.5"),
        ({"architectures": 5}, "architectures in config.json is 5; allowed: a list of texts"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings in config.json is 'false'; allowed: true or false"),
        ({"rope_scaling": "linear"}, "rope_scaling in config.json is 'linear'; allowed: a table of options"),
    ],
)
def test_a_senseless_option_is_named_with_its_value_and_what_is_allowed(folder, tmp_path, changes, words):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError, match=f"{re.escape(str(folder))}.*{words}"):
        open_checkpoint(folder, cache_dir=tmp_path)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None, 2**40, float("nan")])
@pytest.mark.parametrize(
    "name", ["hidden_size", "intermediate_size", "num_layers", "num_kv_heads", "head_dim", "vocab_size", "context_len"]
)
def test_a_model_has_no_senseless_sizes(name, value):
    with pytest.raises(ConfigError, match=f"{name} is .*; allowed: a whole number, 1 to 2147483647"):
        tiny_spec(**{name: value})


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), 10**400, True, "1e-5", None])
def test_a_model_has_no_senseless_numbers(value):
    with pytest.raises(ConfigError, match="norm_eps is .*; allowed: a finite number above 0"):
        tiny_spec(norm_eps=value)
    with pytest.raises(ConfigError, match="theta is "):
        RopeSpec(theta=value)
    with pytest.raises(ConfigError, match="linear_factor is "):
        RopeSpec(linear_factor=value)
    sizes = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context_len": 64}
    for name in sizes:
        with pytest.raises(ConfigError, match=f"{name} is "):
            Llama3RopeScaling(**{**sizes, name: value})
    with pytest.raises(ConfigError, match="allowed: the first above the second"):
        Llama3RopeScaling(**{**sizes, "high_freq_factor": 1.0})


TINY_JSON = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
]


@pytest.mark.parametrize("name", TINY_JSON)
@pytest.mark.parametrize("text", [DEEP, '{"a": ' * 100_000, f'{{"a": {DIGITS}}}', "\xff\xfe", ""], ids=range(5))
def test_json_too_deep_too_long_or_no_json_is_one_line(tmp_path_factory, name, text):
    files = write_tiny_llm(tmp_path_factory.mktemp("deep"))
    (files.target / name).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=re.escape(name)) as caught:
        assert open_checkpoint(files.target, cache_dir=files.target.parent / "cache").tokenizer is None
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", [DEEP, f'{{"weight_map": {{"a": {DIGITS}}}}}', '{"weight_map": {"a": 5}}', '{"weight_map": [1]}', "{}"]
)
def test_an_index_that_is_damaged_is_named(folder, tmp_path, text):
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        open_checkpoint(folder, cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["x" * 5_000, "../model.safetensors", "", "a\0b", "/etc/passwd"])
def test_an_index_names_files_beside_it(folder, tmp_path, name):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="allowed: the name of a file beside the index"):
        open_checkpoint(folder, cache_dir=tmp_path)


def write_header(path, header, num_bytes=0):
    raw = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(num_bytes))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "X9", "shape": [1], "data_offsets": ["a", "b"]}, "dtype 'X9'; known: F64, F32"),
        ({"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}, "allowed: whole numbers"),
        ({"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}, "allowed: whole numbers"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "allowed: whole numbers"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "allowed: whole numbers"),
        ({"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}, "damaged header|dtype"),
        ({"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}, "damaged header"),
        ({"dtype": "F32", "shape": [1], "data_offsets": 4}, "damaged header"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "begins at byte 4 .*ends at 0"),
        ("x", "damaged header"),
    ],
)
def test_an_entry_of_a_safetensors_header_is_checked(folder, tmp_path, entry, words):
    write_header(folder / "model.safetensors", {"a": entry}, 8)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(folder, cache_dir=tmp_path)


@pytest.mark.parametrize("header", [DEEP, f'{{"a": {DIGITS}}}', "[]", '{"__metadata__": 5}'])
def test_a_safetensors_header_that_is_none_is_named(folder, tmp_path, header):
    write_header(folder / "model.safetensors", header)
    with pytest.raises(CheckpointError, match=r"model\.safetensors|lacks|too few"):
        open_checkpoint(folder, cache_dir=tmp_path)


def test_tensors_that_overlap_are_refused(folder, tmp_path):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    write_header(folder / "model.safetensors", {"a": entry, "b": entry}, 8)
    with pytest.raises(CheckpointError, match="tensor b begins at byte 0 of the data, the one before it ends at 8"):
        open_checkpoint(folder, cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["x" * 5_000, "a\0b", "~no-such-user/model", "owner/" + "y" * 3_000])
def test_names_that_no_file_can_have_are_no_models(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError) as caught:
        open_checkpoint(name, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 5_000


# GGUF


@pytest.fixture(scope="module")
def weights():
    return TinyWeights(tiny_spec(**GGUF_SIZES))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_table_of_rotary_factors_holds_finite_numbers_above_0(tmp_path, weights, value):
    factors = np.full(weights.spec.head_dim // 2, 2.0, np.float32)
    factors[1] = value
    path = write_gguf(tmp_path / "m.gguf", weights, extra_tensors={"rope_freqs.weight": factors})
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight holds other values than finite ones above 0"):
        open_checkpoint(path, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"split.count": "two"}, "split.count in the file's metadata is 'two'; allowed: a whole number"),
        ({"block_count": "two"}, "llama.block_count in the file's metadata is 'two'"),
        ({"block_count": 2.0}, "llama.block_count .* is 2.0"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "norm_eps is 0.0"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "rms_epsilon .* is nan; allowed: a finite number"),
        ({"attention.layer_norm_rms_epsilon": "x"}, "rms_epsilon .* is 'x'"),
        ({"rope.freq_base": -5.0}, "theta is -5.0"),
        ({"rope.freq_base": float("inf")}, "rope.freq_base .* is inf"),
        ({"rope.scaling.type": 5}, "rope.scaling.type .* is 5; allowed: a text"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": -2.0}, "linear_factor is -2.0"),
        ({"context_length": 0}, "llama.context_length .* is 0"),
    ],
)
def test_every_option_of_a_gguf_is_read_by_its_type(tmp_path, weights, metadata, words):
    path = write_gguf(tmp_path / "m.gguf", weights, metadata=metadata)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path, cache_dir=tmp_path)


# What nobody thought of


@pytest.mark.parametrize(
    "error",
    [TypeError("a"), KeyError("a"), RecursionError(), ZeroDivisionError(), OverflowError("x\ny"), OSError(36, "no")],
)
def test_what_reading_raises_becomes_one_line(error):
    with (
        pytest.raises(CheckpointError, match="^the thing cannot be read: .*; the files are damaged") as caught,
        reading("the thing"),
    ):
        raise error
    assert "\n" not in str(caught.value)


def test_errors_that_say_what_is_wrong_pass_and_interruptions_too():
    for error in (ConfigError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error)), reading("the thing"):
            raise error


def test_options_say_key_place_value_and_what_is_allowed():
    options = Options({"a.n": "x", "a.t": {"k": 1}}, "the model", " in a file", "a.")
    with pytest.raises(CheckpointError, match=r"^the model: a\.n in a file is 'x'; allowed: a whole number, 0 to"):
        options.whole("n")
    with pytest.raises(CheckpointError, match=r"^the model: a\.gone in a file is missing; allowed: a text"):
        options.text("gone")
    with pytest.raises(CheckpointError, match="^the model: k in t in a file is 1; allowed: true or false"):
        options.table("t").flag("k")
    assert (options.flag("gone"), options.texts("gone"), options.whole("gone", 4)) == (False, (), 4)


# End tokens


@pytest.mark.parametrize(
    ("named", "kept", "left_out"),
    [
        (-1, (), "-1"), ("</s>", (), "'</s>'"), ([2, 97, -3], (2,), "97, -3"), ([None, 2], (2,), None), (True, (), "True"),
        (10**30, (), "1000"),
    ],
)  # fmt: skip
def test_an_end_token_that_is_none_is_left_out_and_said(tmp_path, caplog, named, kept, left_out):
    files = write_tiny_llm(tmp_path)
    config = json.loads((files.target / "config.json").read_text())
    (files.target / "config.json").write_text(json.dumps({**config, "eos_token_id": named}))
    checkpoint = open_checkpoint(files.target, cache_dir=tmp_path)
    assert checkpoint.eos_token_ids == (kept or (checkpoint.tokenizer.eos_token_id,))
    assert (f"eos_token_id in config.json names {left_out}" in caplog.text) is (left_out is not None)
    assert "it ends no answer" in caplog.text or left_out is None


@pytest.mark.parametrize("options", [{"min_tokens": 3}, {"grammar": "ab+"}])
def test_an_end_token_outside_the_vocabulary_hurts_no_option(tmp_path, options):
    from foreword.engine.llm import LLM
    from foreword.sampling.grammar import Grammar

    if "grammar" in options:
        pytest.importorskip("llguidance")
        options = {"grammar": Grammar.regex(options["grammar"])}
    files = write_tiny_llm(tmp_path)
    config = json.loads((files.target / "config.json").read_text())
    (files.target / "config.json").write_text(
        json.dumps({**config, "eos_token_id": [config["eos_token_id"], 40, 10**6]})
    )
    [result] = LLM(files.load(), "ngram").generate("ab", SamplingParams(max_tokens=6, **options))
    assert len(result.token_ids) >= 2


# Heads


@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_a_tied_embedding_is_taken_where_it_differs_as_transformers_does(tmp_path, caplog, same):
    import transformers

    weights = TinyWeights(tiny_spec(tied_head=False))
    if same:
        weights.tensors["head.weight"] = weights.tensors["embed.weight"].clone()
    folder = write_folder(tmp_path / "m", weights, tie_word_embeddings=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    checkpoint = open_checkpoint(folder, cache_dir=tmp_path)
    ours = checkpoint.tensor("head.weight" if checkpoint.has_tensor("head.weight") else "embed.weight")
    assert torch.equal(theirs.get_output_embeddings().weight, ours)
    assert checkpoint.spec.tied_head is same
    assert ("the head in the files is taken" in caplog.text) is not same
