"""Profile files: written, read, refused; what they bring to `LLM` and the command line, and what wins over them."""

import json
import logging
from dataclasses import replace

import pytest

from foreword.adapt.controller import AdaptiveController
from foreword.cli import options as opt
from foreword.cli.main import main
from foreword.draft.draft_config import DraftConfig
from foreword.engine.fixed_policy import FixedController
from foreword.engine.llm import LLM
from foreword.engine.machine_key import machine_key
from foreword.engine.profile_file import Profile, model_facts, read_profile, write_profile
from foreword.errors import ConfigError
from foreword.sampling.params import SamplingParams


def profile_for(model, **changes):
    profile = Profile(
        made="2026-11-29T12:00:00+00:00",
        model=model_facts(model),
        machine=machine_key(),
        runtime=model.choice.name,
        dtype=model.choice.dtype,
        kv_dtype=model.choice.kv_dtype,
        isa=model.choice.isa or "",
        threads=1,
        drafter={"method": "suffix", "num_speculative_tokens": 5, "suffix_decoding_tree": False},
        policy="fixed",
        measured={"speed_up": 1.5},
    )
    return replace(profile, **changes)


@pytest.fixture
def path(model, tmp_path):
    write_profile(tmp_path / "p.json", profile_for(model))
    return tmp_path / "p.json"


def test_what_is_written_is_read(model, path):
    assert read_profile(path) == replace(profile_for(model), path=str(path))
    assert str(path) not in path.read_text(), "where a file lies is no part of it"


def test_settings_are_those_that_differ():
    config = DraftConfig(method="suffix,recycling", num_speculative_tokens=14, options={"cascade_merge": True})
    assert config.settings == {
        "method": "suffix,recycling",
        "cascade_merge": True,
        "num_speculative_tokens": 14,
    }
    assert DraftConfig().settings == {"method": DraftConfig.method}


def test_a_profile_names_drafter_and_settings(model, path):
    llm = LLM(model, profile=path)
    assert llm.config == DraftConfig(method="suffix", num_speculative_tokens=5, options={"suffix_decoding_tree": False})
    assert type(llm.engine.parts.controller) is FixedController


def test_the_policy_comes_with_it(model, tmp_path):
    write_profile(tmp_path / "p.json", profile_for(model, policy="adaptive"))
    assert isinstance(LLM(model, profile=tmp_path / "p.json").engine.parts.controller, AdaptiveController)
    named = LLM(model, profile=tmp_path / "p.json", policy="fixed")
    assert type(named.engine.parts.controller) is FixedController


def test_explicit_options_win(model, path):
    assert LLM(model, "ngram", profile=path).config == DraftConfig(method="ngram", num_speculative_tokens=7)
    assert LLM(model, profile=path, num_speculative_tokens=2).config.num_speculative_tokens == 2
    given = {"method": "recycling"}
    assert LLM(model, speculative_config=given, profile=path).config.method == "recycling"


def test_words_are_the_same_with_and_without(model, path):
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=4, ignore_eos=True)
    prompt = model.tokenizer.encode("abc abc abc abc")
    plain = LLM(model, "none").generate([prompt], params)[0]
    tuned = LLM(model, profile=path).generate([prompt], params)[0]
    assert tuned.token_ids == plain.token_ids
    assert tuned.stats.drafted_tokens > 0


def test_load_options_fill_what_is_not_asked_for(model):
    profile = profile_for(model, runtime="native", dtype="int4", kv_dtype="bfloat16", isa="", threads=2)
    free = {"runtime": "auto", "dtype": "auto", "kv_dtype": "auto", "threads": None}
    found = profile.load_options(free)
    assert found == {"runtime": "native", "dtype": "int4", "kv_dtype": "bfloat16", "threads": 2}
    assert profile.load_options({}) == found, "as for `LLM`, where nothing is given"
    assert profile.load_options(free | {"dtype": "int8"}) == free | {"dtype": "int8", "threads": 2}
    assert profile.load_options(free | {"threads": 1})["threads"] == 1
    assert profile.load_options(free | {"device": "cuda"}) == free | {"device": "cuda", "threads": 2}
    assert replace(profile, machine="another").load_options(free) == free
    forced = replace(profile, isa="avx2")
    assert forced.load_options(free)["isa"] == "avx2"
    assert forced.load_options(free | {"isa": "portable"})["isa"] == "portable"
    assert "isa" not in forced.load_options({"dtype": "float32"})


def test_another_model_is_refused(model, path):
    facts = json.loads(path.read_text())
    facts["model"] = {"source": "some-model", "fingerprint": "f" * 64}
    path.write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match=r"made for some-model \(fingerprint f{12}\.\.\.\), and this is .* tune"):
        LLM(model, profile=path)


def test_another_machine_is_warned_of_once(model, tmp_path, caplog):
    write_profile(tmp_path / "p.json", profile_for(model, machine="another", threads=4096, runtime="native"))
    with caplog.at_level(logging.WARNING):
        llm = LLM(model, profile=tmp_path / "p.json")
        llm.generate(["abc"], SamplingParams(max_tokens=2))
    assert [r.getMessage() for r in caplog.records if "another machine" in r.getMessage()] == [
        f"{tmp_path / 'p.json'} was measured on another machine: its drafter is used, but another may be faster here; "
        f"'foreword tune' measures it"
    ]
    assert llm.config.method == "suffix"


def test_another_way_of_running_is_warned_of(model, tmp_path, caplog):
    write_profile(tmp_path / "p.json", profile_for(model, runtime="native", dtype="int8"))
    LLM(model, profile=tmp_path / "p.json")
    assert "measured with native int8, and this runs on torch float32" in caplog.text


DAMAGED = {
    "not JSON": ("{", "is not JSON"),
    "no object": ("[1]", "is no profile of foreword"),
    "another file": ('{"widths": {}}', "is no profile of foreword"),
    "later format": ('{"foreword_profile": 2}', "format 2, and this foreword reads 1"),
    "incomplete": ('{"foreword_profile": 1, "made": "x"}', "'model' is missing"),
}


@pytest.mark.parametrize(("text", "words"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_say_what_is_wrong(tmp_path, text, words):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_profile(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("threads", "two", "threads is 'two'; allowed: int or null"),
        ("drafter", {"metod": "suffix"}, "did you mean 'method'"),
        ("drafter", {"num_speculative_tokens": -1}, "num_speculative_tokens is -1"),
        ("drafter", "suffix", "drafter is 'suffix'; allowed: an object"),
    ],
)
def test_wrong_values_are_refused_with_the_file(path, name, value, words):
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ConfigError, match=words) as error:
        read_profile(path)
    assert str(path) in str(error.value)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: No such file.*foreword tune --out"):
        read_profile(tmp_path / "none.json")


def test_the_command_line_takes_it(files, path, capsys):
    asked = [
        "generate",
        "--model",
        str(files.target),
        "--runtime",
        "torch",
        "--dtype",
        "float32",
        "--prompt",
        "abc abc",
    ]
    options = ["--max-tokens", "4", "--json", "--seed", "1", "--profile", str(path)]
    assert main([*asked, *options]) == 0
    assert json.loads(capsys.readouterr().out)["drafter"] == "suffix"
    assert main([*asked, *options, "--drafter", "ngram"]) == 0
    assert json.loads(capsys.readouterr().out)["drafter"] == "ngram"
    assert main([*asked, "--profile", str(path.parent / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_options_leave_the_drafter_to_the_profile(tmp_path):
    assert opt.draft_options(None, None, None, profile=tmp_path) == {
        "num_speculative_tokens": None,
        "profile": tmp_path,
        "drafter": None,
    }
    assert opt.draft_options(None, None, None)["drafter"] is None, "the default is the model's to choose"
