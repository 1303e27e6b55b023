"""`foreword vllm`: the command and the call in vLLM's names; what vLLM would not run is refused with what to do."""

import ast
import inspect
import json
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from foreword import LLM, AsyncLLM
from foreword.cli.main import main
from foreword.draft.draft_config import parse_draft_config
from foreword.engine.machine_key import machine_key
from foreword.engine.profile_file import Profile, write_profile
from foreword.errors import ConfigError
from foreword.integrations.vllm import Proposer
from foreword.integrations.vllm_options import engine_options, python_text, vllm_refusal
from tests.support.tiny_llm import write_tiny_llm

PROPOSER = "foreword.integrations.vllm.Proposer"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tiny_llm(tmp_path_factory.mktemp("vllm"))


def printed(capsys, *words):
    assert main(["vllm", *words]) == 0
    return capsys.readouterr().out


def options_of(line):
    """Options of a printed command line."""
    words = shlex.split(line)
    return words[:3], {name: json.loads(value) for name, value in zip(words[3::2], words[4::2], strict=True)}


def test_suffix_is_a_custom_class_that_takes_its_settings(capsys):
    out = printed(
        capsys, "org/model", "--speculative-config", '{"method": "suffix", "suffix_decoding_max_tree_depth": 9}'
    )
    head, options = options_of(out.splitlines()[0])
    assert head == ["vllm", "serve", "org/model"]
    assert options["--speculative-config"] == {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": 3}
    config = SimpleNamespace(
        additional_config=options["--additional-config"],
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 10),
        scheduler_config=SimpleNamespace(max_num_seqs=2),
    )
    assert Proposer(config).states.drafter.max_depth == 9


def test_the_python_call_has_the_same_options():
    made = {}
    fake = SimpleNamespace(LLM=lambda model, **options: made.update(options, model=model))
    options = engine_options("suffix", 4)
    text = python_text("org/model", options).replace("from vllm import LLM", "")
    exec(text, {"LLM": fake.LLM})
    assert made == {"model": "org/model", **options}


def test_prompt_lookup_is_vllms_own_and_says_both_ends():
    found = engine_options({"method": "ngram", "prompt_lookup_max": 4})["speculative_config"]
    assert found == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 4}


def test_no_drafter_is_no_option(capsys):
    assert printed(capsys, "m", "--drafter", "none").splitlines()[0] == "vllm serve m"


def test_a_profile_says_what_drafts(tmp_path, capsys):
    profile = Profile(
        made="now", model={}, machine=machine_key(), runtime="native", dtype="int8", kv_dtype="bfloat16", isa="",
        threads=2, drafter={"method": "suffix", "num_speculative_tokens": 5}, policy="fixed",
    )  # fmt: skip
    write_profile(tmp_path / "p.json", profile)
    _, options = options_of(printed(capsys, "--profile", str(tmp_path / "p.json")).splitlines()[0])
    assert options["--speculative-config"]["num_speculative_tokens"] == 5
    write_profile(tmp_path / "p.json", replace(profile, drafter={"method": "lookahead"}))
    assert main(["vllm", "--profile", str(tmp_path / "p.json")]) == 2
    assert "does not run in vLLM" in capsys.readouterr().err


def test_json_is_data_alone(capsys):
    data = json.loads(printed(capsys, "m", "--drafter", "suffix", "--num-speculative-tokens", "2", "--json"))
    assert data["command"][:3] == ["vllm", "serve", "m"]
    assert data["options"] == engine_options("suffix", 2)


def test_a_trained_drafter_is_named_from_a_folder_that_vllm_loads(files):
    found = engine_options({"method": "eagle3", "model": str(files.eagle3)}, 4)["speculative_config"]
    assert found == {"method": "eagle3", "model": str(files.eagle3), "num_speculative_tokens": 4}
    with pytest.raises(ConfigError, match="foreword export eagle3 --to vllm"):
        engine_options("eagle3")
    with pytest.raises(ConfigError, match="holds eagle3, not eagle"):
        engine_options({"method": "eagle", "model": str(files.eagle3)})


def test_files_that_vllm_loads_in_silence_and_wrongly_are_refused(files, tmp_path):
    tensors = load_file(files.eagle3_reduced / "model.safetensors")
    config = json.loads((files.eagle3_reduced / "config.json").read_text())
    del tensors["d2t"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="d2t"):
        engine_options({"method": "eagle3", "model": str(tmp_path)})


@pytest.mark.parametrize(
    ("method", "config", "tensors", "said"),
    [
        ("eagle", {}, ["fc.weight", "d2t"], "no tensor d2t"),
        ("eagle", {}, ["fc.weight", "fc.bias"], "no tensor fc.bias"),
        ("eagle", {}, ["fc.weight"], ""),
        ("draft_model", {}, ["model.layers.0.self_attn.q_proj.weight"], "no embedding"),
        ("draft_model", {}, ["model.embed_tokens.weight", "d2t"], "no tensor d2t"),
        ("draft_model", {}, ["model.embed_tokens.weight"], ""),
        ("medusa", {}, ["blocks.0.layers.0.weight", "token_map"], "token_map"),
        ("medusa", {}, ["blocks.0.layers.0.weight"], ""),
        ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}}, ["fc.weight", "layers.0.hidden_norm.weight"], "eagle_config alone"),
        ("eagle3", {}, ["fc.weight", "layers.0.hidden_norm.weight"], ""),
    ],
)  # fmt: skip
def test_the_verdict_and_its_reason(method, config, tensors, said):
    found = vllm_refusal(method, config, tensors)
    assert said in found
    assert bool(said) == bool(found)


def test_running_asks_for_a_model_and_for_vllm(capsys):
    assert main(["vllm", "--drafter", "suffix", "--run"]) == 2
    assert "no model is named" in capsys.readouterr().err
    assert main(["vllm", "m", "--drafter", "suffix", "--run"]) == 2
    assert "not installed" in capsys.readouterr().err
    assert main(["vllm"]) == 2
    assert "--drafter" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ({"speculative_model": "a/b", "num_speculative_tokens": 5}, {"method": "draft_model", "model": "a/b", "num_speculative_tokens": 5}),
        ({"assistant_model": "a/b", "num_assistant_tokens": 4}, {"method": "draft_model", "model": "a/b", "num_speculative_tokens": 4}),
        ({"speculative_model": "[ngram]", "ngram_prompt_lookup_max": 4}, {"method": "ngram", "prompt_lookup_max": 4}),
        ({"prompt_lookup_num_tokens": 10}, {"method": "ngram", "num_speculative_tokens": 10}),
    ],
)  # fmt: skip
def test_arguments_of_older_names_are_answered_with_todays(older, today):
    for kind in (LLM, AsyncLLM):
        with pytest.raises(ConfigError) as refusal:
            kind(**older)
        told = re.search(r"speculative_config=(\{.*\}),", str(refusal.value)).group(1)
        assert ast.literal_eval(told) == today
        assert parse_draft_config(today).method == today["method"]
    assert all(name in str(refusal.value) for name in older if name != "num_speculative_tokens")


def test_the_signature_stays():
    assert {"model", "drafter", "speculative_config"} <= set(inspect.signature(LLM).parameters)


def test_an_option_that_never_was_stays_a_type_error():
    with pytest.raises(TypeError, match="no_such_option"):
        LLM(no_such_option=1)
