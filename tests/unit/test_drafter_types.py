"""A drafter is one file: all that lists drafters reads what it says of itself, and other packages may add some."""

import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from foreword import LLM, ConfigError, SamplingParams
from foreword.cli.main import main
from foreword.draft import registry
from foreword.draft.cascade import CascadeOptions
from foreword.draft.draft_config import ALIASES, DraftConfig, draft_config, parse_draft_config
from foreword.draft.drafter_options import DrafterOptions, bounds_of, help_of
from foreword.draft.names import parse_method, split_list
from foreword.draft.traits import is_looked_up, needs_to_see, num_looked_up, reads_near
from foreword.errors import UnknownNameError
from tests.support.plugin import STUTTER, install

TYPES = {one.name: one for one in registry.drafter_types()}
OPTIONS = {
    name: one
    for kind in (CascadeOptions, *(t.options for t in TYPES.values()))
    for name, one in bounds_of(kind).items()
}


def other_value(name: str):
    """One that is allowed and is not the default."""
    kind = next(k for k in (CascadeOptions, *(t.options for t in TYPES.values())) if name in bounds_of(k))
    default = next(one.default for one in fields(kind) if one.name == name)
    bounds = OPTIONS[name]
    if bounds.kind is bool:
        return not default
    if bounds.kind is str:
        return bounds.choices[0] if bounds.choices else "a/file"
    return (bounds.lowest or 0) + 1 if default != (bounds.lowest or 0) + 1 else bounds.lowest + 2


def beside(name: str) -> dict:
    """What an option needs beside it to mean anything."""
    return (
        {"suffix_decoding_max_cached_requests": 4}
        if name.startswith(("suffix_decoding_f", "suffix_decoding_max_c"))
        else {}
    )


# --- what the types say


@pytest.mark.parametrize("name", TYPES)
def test_every_drafter_says_what_it_is(name):
    one = TYPES[name]
    assert one.summary
    assert not one.summary.endswith(".")
    assert all(help and not help.endswith(".") for help in help_of(one.options).values())
    assert isinstance(one.options(), DrafterOptions)
    assert all(set(options) <= set(bounds_of(one.options)) for options in one.variants.values())
    assert set(one.merges_with) <= set(TYPES)


def test_options_that_share_a_name_are_of_one_type():
    for name in OPTIONS:
        kinds = {bounds_of(one.options)[name].kind for one in TYPES.values() if name in bounds_of(one.options)}
        assert len(kinds) <= 1, name
    assert set(ALIASES.values()) <= {*OPTIONS, "path", "num_speculative_tokens"}
    assert not set(ALIASES) & {*OPTIONS, "path", "method"}


def test_traits_of_several():
    assert is_looked_up("suffix,ngram_lm=somewhere")
    assert not is_looked_up("suffix,layerskip")
    assert [num_looked_up(m) for m in ("suffix", "suffix,ngram,eagle3=a", "draft_model=a,suffix")] == [0, 2, 0]
    assert needs_to_see("suffix,medusa=a")
    assert not needs_to_see("suffix,draft_model=a")
    assert reads_near("suffix,eagle3=a")
    assert not reads_near("suffix,draft_model=a")
    unknown = "one of a program's own"
    assert (is_looked_up(unknown), needs_to_see(unknown), reads_near(unknown)) == (False, False, False)


# --- settings that do nothing


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("method", TYPES)
def test_an_option_is_taken_by_the_drafters_that_have_it_and_refused_by_the_others(method, option):
    one = TYPES[method]
    options = beside(option) | {option: other_value(option)}
    path = "0.5" if one.takes == "CHANCE" else "somewhere" if one.takes else None
    as_json = {"method": method, **({"model": path} if path else {}), **options}
    if option in bounds_of(one.options):
        for config in (DraftConfig(method=method, path=path, options=options), parse_draft_config(as_json)):
            assert getattr(config.members[0].options, option) == options[option]
            assert parse_draft_config(config.settings) == config
        return
    owners = [name for name, other in TYPES.items() if option in bounds_of(other.options)]
    owners += ["several drafters joined by commas"] if option in bounds_of(CascadeOptions) else []
    message = f"^{option} does nothing for {method}; it belongs to {', '.join(owners)}; leave it out$"
    with pytest.raises(ConfigError, match=message):
        DraftConfig(method=method, path=path, options={option: other_value(option)})
    with pytest.raises(ConfigError, match=message):
        parse_draft_config(as_json if not beside(option) else {"method": method, option: other_value(option)})


@pytest.mark.parametrize("option", OPTIONS)
def test_in_a_cascade_an_option_belongs_to_one_member_at_least(option):
    method = "recycling,lookahead,draft_model=some/where"
    owned = option in bounds_of(CascadeOptions) or any(
        option in bounds_of(TYPES[name].options) for name in ("recycling", "lookahead", "draft_model")
    )
    options = {option: other_value(option)}
    if owned:
        config = DraftConfig(method=method, options=options)
        assert dict(config.options) == options
        return
    with pytest.raises(ConfigError, match=f"^{option} does nothing for recycling,lookahead,draft_model; it belongs to"):
        DraftConfig(method=method, options=options)


def test_an_option_goes_to_all_members_that_have_it():
    config = draft_config({"method": "layerskip,draft_model=a", "draft_tree_width": 3, "draft_dtype": "int8"})
    assert [member.options.draft_tree_width for member in config.members] == [3, 3]
    assert config.members[1].options.draft_dtype == "int8"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "eagle3", "model": "a", "prompt_lookup_max": 2}, "prompt_lookup_max does nothing for eagle3; it belongs to ngram"),
        ({"exit_layer": 2}, "exit_layer does nothing for auto; it belongs to layerskip"),
        ({"method": "none", "num_speculative_tokens": 4}, "num_speculative_tokens is 4, and drafter none drafts nothing"),
        ({"method": "suffix", "suffix_decoding_file": "a"}, "suffix_decoding_file is 'a', which does nothing: .*requests is 0"),
        ({"method": "suffix", "suffix_decoding_max_cached_tokens": 9}, "suffix_decoding_max_cached_tokens is 9, which does nothing"),
        ({"method": "ngram,suffix", "cascade_merge": True, "cascade_threshold": 1.0}, "cascade_threshold is 1.0, which does nothing"),
        ({"method": "ngram", "prompt_lookup_max": 10**6}, "prompt_lookup_max is 1000000; allowed: a whole number, 1 to 32"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 10**6}, "allowed: a whole number, 2 to 256"),
        ({"method": "lookahead", "lookahead_window": 512, "lookahead_ngram": 3}, "makes a window of 1023 nodes; allowed: .*512"),
    ],
)  # fmt: skip
def test_on_the_command_line_it_is_one_line_before_anything_is_loaded(config, message, capsys):
    arguments = ["generate", "--prompt", "a", "--model", "no/such", "--speculative-config", json.dumps(config)]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    with pytest.raises(ConfigError, match=message) as refused:
        LLM("no/such", config)
    assert err == f"error: {refused.value}\n"


def test_an_options_object_is_as_good_as_a_mapping():
    options = TYPES["suffix"].options(suffix_decoding_tree=False)
    assert DraftConfig(method="suffix", options=options) == draft_config(
        {"method": "suffix", "suffix_decoding_tree": False}
    )
    assert hash(DraftConfig(method="suffix", options=options))
    with pytest.raises(ConfigError, match="options is 5; allowed: the drafter's settings by name"):
        DraftConfig(options=5)
    with pytest.raises(UnknownNameError, match="unknown setting 'draft_tree_widht' .did you mean 'draft_tree_width'"):
        DraftConfig(method="eagle3", options={"draft_tree_widht": 3})


# --- commas in paths


def test_a_comma_may_stand_in_a_path_that_exists(tmp_path):
    folder, other = tmp_path / "a, b", tmp_path / "a"
    folder.mkdir()
    for before, after in (([], []), (["suffix"], ["ngram"]), (["suffix"], [f"eagle3={other}"])):
        method = ",".join([*before, f"draft_model={folder}", *after])
        expected = [
            (name, path or None)
            for name, _, path in (p.partition("=") for p in (*before, f"draft_model={folder}", *after))
        ]
        assert parse_method(method) == expected
        assert [(m.name, m.path) for m in draft_config(method).members] == expected
    other.mkdir()
    assert parse_method(f"draft_model={folder}") == [("draft_model", str(folder))], "the longest path that exists"
    both = [("eagle3", str(folder)), ("draft_model", str(other)), ("ngram", None)]
    assert parse_method(f"eagle3={folder},draft_model={other},ngram") == both, (
        "the path of one does not reach over another"
    )
    assert split_list(f"suffix+eagle3={folder}@16,ngram") == [f"suffix+eagle3={folder}@16", "ngram"]


def test_a_path_with_a_comma_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=f"unknown drafter 'b'.* known: .*no file or folder '{tmp_path}/a,b'"):
        draft_config(f"draft_model={tmp_path}/a,b")
    with pytest.raises(UnknownNameError, match="unknown drafter 'sufix' .did you mean 'suffix'"):
        draft_config("ngram,sufix")
    with pytest.raises(ConfigError, match="unknown drafter ''"):
        draft_config("ngram,")
    long = "draft_model=" + "a," * 300
    with pytest.raises(ConfigError, match="unknown drafter 'a'"):
        draft_config(long)


# --- other packages


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Installs a package for one test."""

    def put(entries, **modules):
        install(tmp_path, entries, modules)
        monkeypatch.syspath_prepend(tmp_path)
        registry._places.cache_clear()

    yield put
    registry._places.cache_clear()
    for name in [n for n in sys.modules if n.startswith("plugin_module")]:
        del sys.modules[name]


def test_a_drafter_of_another_package_runs_and_changes_no_token(plugin, model, capsys):
    plugin({"stutter": "plugin_module:STUTTER"}, plugin_module=STUTTER)
    assert registry.drafter_names()[-1] == "stutter"
    for params in (SamplingParams(max_tokens=24), SamplingParams(max_tokens=24, temperature=0.9, seed=3)):
        plain = LLM(model, "none").generate([[5, 6, 7, 5]], params)[0]
        drafted = LLM(model, {"method": "stutter", "repeats": 3}).generate([[5, 6, 7, 5]], params)[0]
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.drafted_tokens > 0
    cascade = LLM(model, "suffix,stutter", policy="adaptive").generate([[5, 6, 7, 5]], SamplingParams(max_tokens=24))[0]
    assert cascade.token_ids == LLM(model, "none").generate([[5, 6, 7, 5]], SamplingParams(max_tokens=24))[0].token_ids
    with pytest.raises(ConfigError, match="repeats is 10; allowed: a whole number, 1 to 9"):
        LLM(model, {"method": "stutter", "repeats": 10})
    with pytest.raises(ConfigError, match="repeats does nothing for suffix; it belongs to stutter"):
        LLM(model, {"method": "suffix", "repeats": 2})


def test_the_help_names_drafters_of_other_packages(plugin, tmp_path):
    import os
    import subprocess

    plugin({"stutter": "plugin_module:STUTTER"}, plugin_module=STUTTER)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "foreword", "generate", "--help"],
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "stutter" in done.stdout


def test_a_broken_package_is_named_and_harms_no_other(plugin, caplog):
    plugin(
        {"gone": "plugin_module_gone:X", "wrong": "plugin_module:NOT_ONE", "other": "plugin_module:STUTTER", "suffix": "a:B"},
        plugin_module=STUTTER,
    )  # fmt: skip
    messages = {
        "gone": "drafter gone should be plugin_module_gone:X, which cannot be imported: No module named",
        "wrong": "drafter wrong should be plugin_module:NOT_ONE, which is str; allowed: a DrafterType",
        "other": "drafter other is plugin_module:STUTTER, which calls itself stutter; give both the same name",
    }
    for name, message in messages.items():
        with pytest.raises(ConfigError, match=message):
            draft_config(name)
    assert set(TYPES) == {one.name for one in registry.drafter_types()}
    assert "drafter suffix of a:B is left out: foreword.draft.lookup.suffix:SUFFIX has that name" in caplog.text


def test_no_drafter_is_imported_before_it_is_asked_for():
    import subprocess

    code = (
        "import sys, foreword.cli.main, foreword.draft.registry as r; r.drafter_names(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
    source = Path(registry.__file__).read_text()
    assert source.count('": "foreword.draft') == len(registry.BUILT_IN), "one line each"
