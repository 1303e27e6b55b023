"""Who drafts where nobody is named, and what cannot be meant by a name."""

import json

import pytest

from foreword import LLM, ConfigError, DraftConfig, SamplingParams
from foreword.adapt.controller import AdaptiveController
from foreword.bench.cells import make_cells
from foreword.cli.main import main
from foreword.draft.draft_config import parse_draft_config
from foreword.engine.fixed_policy import FixedController
from foreword.target.hf_load import adopt_model
from foreword.target.load_model import load_model

pytestmark = pytest.mark.usefixtures("own_cache")

PROMPT = [5, 6, 7, 5, 6, 7, 5]


def test_the_default_is_auto_with_the_adaptive_policy_and_the_words_of_plain_decoding(model, tmp_path):
    llm = LLM(model)
    assert (llm.config.method, llm.config.num_speculative_tokens) == ("auto", 16)
    assert isinstance(llm.engine.parts.controller, AdaptiveController)
    assert list((tmp_path / "cache" / "costs").glob("*.json")), "measured once, then kept"
    for params in (SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=0.9, seed=3)):
        plain, drafted = (one.generate([PROMPT], params)[0].token_ids for one in (LLM(model, "none"), llm))
        assert drafted == plain


@pytest.mark.parametrize("verifier", ["rejection", "block", "typical"])
def test_where_words_depend_on_drafts_the_default_does_not_depend_on_the_clock(model, verifier):
    for llm in (LLM(model, verifier=verifier), LLM(model, speculative_config={}, verifier=verifier)):
        assert llm.config.method == "ngram"
        assert type(llm.engine.parts.controller) is FixedController
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=4)
    first, again = (LLM(model, verifier=verifier).generate([PROMPT], params)[0].token_ids for _ in range(2))
    assert first == again
    assert LLM(model, "auto", verifier=verifier).config.method == "auto", "who names it gets it"


def test_a_number_of_tokens_is_the_most_that_auto_drafts(model):
    llm = LLM(model, num_speculative_tokens=2)
    assert (llm.config.method, llm.config.num_speculative_tokens) == ("auto", 2)
    stats = llm.generate([PROMPT], SamplingParams(max_tokens=40, ignore_eos=True))[0].stats
    assert stats.drafted_tokens <= 2 * stats.num_steps
    assert LLM(model, num_speculative_tokens=0).generate([PROMPT])[0].stats.drafted_tokens == 0


def test_a_policy_that_is_named_wins(model):
    assert type(LLM(model, policy="fixed").engine.parts.controller) is FixedController


def test_settings_of_prompt_lookup_mean_ngram():
    assert parse_draft_config({"num_speculative_tokens": 3}).method == "auto"
    for key in ("prompt_lookup_max", "prompt_lookup_min", "prompt_lookup_num_tokens", "max_ngram_size"):
        assert parse_draft_config({key: 2}).method == "ngram"
    assert parse_draft_config({"prompt_lookup_num_tokens": 2, "method": "suffix"}).method == "suffix"


REFUSED = {
    "ngram=some/path": "drafter ngram reads no weights, and 'some/path' is named for it; leave the path out",
    "none=x": "drafter none reads no weights",
    "ngram=x,draft_model=y": "drafter ngram reads no weights, and 'x' is named for it",
    "suffix,suffix": "names suffix twice; name each drafter once",
    "draft_model=a,draft_model=a": "names draft_model=a twice",
    "auto,suffix": "auto goes with no other: it is memory .*drafting only what pays.*name the drafters themselves, with policy adaptive",
    "recycling,auto": "auto goes with no other: it is memory",
}


@pytest.mark.parametrize("drafter", REFUSED)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(drafter):
    with pytest.raises(ConfigError, match=REFUSED[drafter]):
        LLM("no such model", drafter)
    with pytest.raises(ConfigError, match=REFUSED[drafter]):
        make_cells([drafter.replace(",", "+")], ["match"], [0.0], [1])


def test_a_path_in_settings_is_refused_only_where_nobody_reads_it():
    for method in ("auto", "ngram", "suffix,ngram"):
        with pytest.raises(
            ConfigError, match=r"reads no weights, and 'x' is named for it; .* one of draft_model, eagle"
        ):
            parse_draft_config({"method": method, "model": "x"})
    for method in ("suffix,draft_model", "eagle3", "synthetic"):
        DraftConfig(method=method, path="x")
    for pair in ("draft_model=a,draft_model=b", "suffix,eagle3=a"):
        DraftConfig(method=pair)


@pytest.mark.parametrize(
    "command", ["generate --prompt a", "chat", "check", "demo", "inspect", "profile", "tune", "bench"]
)
def test_an_empty_model_is_not_the_default_one(command, capsys):
    assert main([*command.split(), "--model", ""]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: model is ''; allowed: a folder, a .gguf file or a hub id, or no model at all")
    with pytest.raises(ConfigError, match="model is ' '"):
        load_model(" ")


def test_the_doctor_names_the_default(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["drafter"]
    assert facts["default"] == DraftConfig.method == "auto"
    assert "ngram" in facts["otherwise"]
    assert main(["doctor"]) == 0
    assert "default drafter" in capsys.readouterr().out


def test_the_default_serves_a_model_that_transformers_holds(tmp_path):
    pytest.importorskip("transformers")
    from tests.support.hf_models import ACCEPTED, random_model
    from tests.support.toy_llm import byte_tokenizer

    held = adopt_model(random_model(ACCEPTED["gpt2"]()), byte_tokenizer(" the"))
    llm, params = LLM(held), SamplingParams(max_tokens=24)
    assert isinstance(llm.engine.parts.controller, AdaptiveController)
    assert llm.generate([PROMPT], params)[0].token_ids == LLM(held, "none").generate([PROMPT], params)[0].token_ids
    assert len(list((tmp_path / "cache" / "costs").glob("*.json"))) == 1, "kept under its name and size"
