"""Special tokens in an answer's text: left out, or shown but for the end token."""

import pytest

from foreword import LLM, SamplingParams
from foreword.errors import ConfigError
from foreword.sampling.grammar import Grammar
from tests.support.tool_models import END, load_tool_model


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    with LLM(load_tool_model(tmp_path_factory.mktemp("special"), "plain"), "ngram") as llm:
        yield llm


def answer(llm, **options):
    """An answer that is a special token between two letters, then the end."""
    token = llm.tokenizer.token_id("[ARGS]")
    grammar = Grammar.lark(f'start: "a" <[{token}]> "b"')
    params = SamplingParams(grammar=grammar, max_tokens=9, seed=1, **options)
    (result,) = llm.generate("ab", params)
    pieces = list(llm.stream("ab", params))
    assert "".join(piece.text for piece in pieces) == result.text
    assert pieces[-1].result.token_ids == result.token_ids
    return result


def test_left_out_and_shown(llm):
    left_out, shown = answer(llm), answer(llm, skip_special_tokens=False)
    assert (left_out.text, shown.text) == ("ab", "a[ARGS]b")
    assert left_out.token_ids == shown.token_ids
    assert shown.token_ids[-1] == llm.tokenizer.token_id(END)


def test_a_stop_string_that_is_a_special_token(llm):
    assert answer(llm, stop="[ARGS]").text == "a"
    assert answer(llm, stop="[ARGS]", skip_special_tokens=False).text == "a"
    assert answer(llm, stop="a[ARGS]", skip_special_tokens=False).text == ""


def test_no_flag():
    with pytest.raises(ConfigError, match="skip_special_tokens"):
        SamplingParams(skip_special_tokens="no")


@pytest.mark.parametrize("text", ["", " ", 3])
def test_no_lark_text(text):
    with pytest.raises(ConfigError, match="Lark"):
        Grammar.lark(text)


def test_a_lark_text_that_is_wrong(llm):
    with pytest.raises(ConfigError, match="lark of the grammar cannot be used"):
        llm.generate("ab", SamplingParams(grammar=Grammar.lark("start: nothing")))
