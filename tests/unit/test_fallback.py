"""What goes to transformers: architectures that foreword has no decoder for, visibly, and nothing else."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from foreword.cli.main import main
from foreword.engine.llm import LLM
from foreword.errors import CheckpointError, LoadError, UnsupportedArchitectureError, UnsupportedModelError
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import load_model
from tests.support.hf_models import ACCEPTED, fast_tokenizer, random_model
from tests.support.tiny_llm import write_tiny_llm

RUNTIMES = ("auto", "torch")


@pytest.fixture
def known(tmp_path):
    """A folder of an architecture that foreword has."""
    return write_tiny_llm(tmp_path).target


@pytest.fixture(scope="module")
def neox(tmp_path_factory):
    """One that it has not."""
    return saved(tmp_path_factory.mktemp("neox") / "model", "gpt_neox")


@pytest.fixture
def unknown(neox, tmp_path):
    import shutil

    return shutil.copytree(neox, tmp_path / "unknown")


def saved(folder, name):
    random_model(ACCEPTED[name]()).save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    return folder


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_header(folder, old, new):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    assert content.count(old) > 0
    file.write_bytes(content.replace(old, new, 1))


def add_tensor(folder, name, values):
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: values}, folder / "model.safetensors", metadata={"format": "pt"})


def drop_tensor(folder, name):
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# name -> (what is done to the folder, the error, its words)
DAMAGE = {
    "a dtype": (lambda f: edit_header(f, b'"F32"', b'"I32"'), CheckpointError, "has dtype I32"),
    "an unused tensor": (
        lambda f: add_tensor(f, "model.layers.0.self_attn.o_proj.bias", torch.zeros(48)), CheckpointError, "o_proj.bias",
    ),
    "a missing tensor": (lambda f: drop_tensor(f, "model.norm.weight"), CheckpointError, "lacks 1 of"),
    "a cut file": (lambda f: edit_header(f, b'{"', b'["'), CheckpointError, "damaged header"),
    "an option": (
        lambda f: edit_json(f / "config.json", partial_rotary_factor=0.5), UnsupportedModelError, "partial_rotary_factor",
    ),
    "a rope": (
        lambda f: edit_json(f / "config.json", rope_scaling={"type": "dynamic", "factor": 2}), UnsupportedModelError, "'dynamic'",
    ),
    "a value": (lambda f: edit_json(f / "config.json", rms_norm_eps=-1), CheckpointError, "norm_eps is -1"),
    "an architecture that writes no text": (
        lambda f: edit_json(f / "config.json", architectures=["LlamaForSequenceClassification"]), UnsupportedModelError,
        "SequenceClassification",
    ),
}  # fmt: skip


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_known_architecture_is_never_run_through_transformers(known, kind, runtime, caplog):
    damage, error, words = DAMAGE[kind]
    damage(known)
    with pytest.raises(error, match=words) as caught:
        load_model(known, runtime=runtime, device="cpu")
    assert not isinstance(caught.value, UnsupportedArchitectureError)
    assert "transformers" not in caplog.text


@pytest.mark.parametrize("kind", DAMAGE)
def test_nor_as_a_draft_model(tmp_path, kind, caplog):
    files = write_tiny_llm(tmp_path)
    damage, error, words = DAMAGE[kind]
    damage(files.draft)
    with pytest.raises(error, match=words):
        LLM(files.load(), f"draft_model={files.draft}")
    assert "transformers" not in caplog.text


MISFITS = {
    "missing": (lambda f: drop_tensor(f, "gpt_neox.final_layer_norm.weight"), "lacks tensors of the model: .*final_layer_norm"),
    "unexpected": (lambda f: add_tensor(f, "gpt_neox.extra.weight", torch.zeros(3)), "does not use: gpt_neox.extra.weight"),
    "mismatched": (lambda f: edit_json(f / "config.json", intermediate_size=40), "has tensors of other shapes than the model's: .*mlp"),
    "of whole numbers": (lambda f: edit_header(f, b'"F32"', b'"I32"'), "has dtype I32, which no parameter"),
    "cut": (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-8]), "is cut short"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISFITS)
def test_what_transformers_would_fill_up_or_leave_out_is_an_error(unknown, kind):
    damage, words = MISFITS[kind]
    damage(unknown)
    with pytest.raises(LoadError, match=words):
        load_model(unknown, device="cpu")


def test_an_unknown_architecture_runs_and_says_so(neox, caplog, capsys):
    loaded = load_model(neox, device="cpu")
    assert "through transformers, which is slower" in loaded.choice.reason
    assert loaded.runs_on == "torch float32 through transformers"
    assert caplog.text.count("running it through transformers") == 1
    assert len(LLM(loaded, "ngram").generate("ab", SamplingParams(max_tokens=3))[0].token_ids) == 3
    with pytest.raises(UnsupportedArchitectureError, match="architecture 'gpt_neox'"):
        load_model(neox, dtype="int8")
    assert main(["inspect", str(neox)]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert re.match(r"runs on +transformers: .*slower", first)
    assert main(["generate", "--model", str(neox), "--prompt", "ab", "--raw", "--max-tokens", "2"]) == 0
    assert "torch float32 through transformers" in capsys.readouterr().err


def test_inspect_says_of_other_models_that_foreword_runs_them(known, capsys):
    assert main(["inspect", str(known)]) == 0
    assert re.match(r"runs on +foreword's own decoders", capsys.readouterr().out)
    assert main(["inspect", str(known), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs_on"] == "foreword's own decoders"
