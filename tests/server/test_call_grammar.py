"""Answers that are held to calls: every syntax, read back by the parser; and what they cost in steps."""

import json

import pytest

from foreword import LLM, SamplingParams
from foreword.errors import ConfigError
from foreword.server.tools.grammar import Tool, calls_grammar
from foreword.server.tools.parser import parse
from foreword.server.tools.syntax import SYNTAXES, SpecialTags, syntax_of
from tests.support.tool_models import TEMPLATES, load_tool_model

KIND = {"enum": ["sun", "rain"]}
CITY = {"type": "object", "properties": {"kind": KIND, "days": {"type": "boolean"}}, "required": ["kind", "days"]}
TOOLS = (Tool("get_weather", "The weather.", CITY), Tool("now"))
NAMES = [tool.name for tool in TOOLS]


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def llm(request, tmp_path_factory):
    model = load_tool_model(tmp_path_factory.mktemp("tools"), request.param)
    with LLM(model, "ngram") as llm:
        assert syntax_of(llm.tokenizer.chat_template).name == request.param
        yield llm


def params(llm, tools=TOOLS, **options):
    syntax = syntax_of(llm.tokenizer.chat_template)
    tags = SpecialTags.of(syntax, llm.tokenizer.special_id)
    is_parallel = options.pop("is_parallel", True)
    grammar = calls_grammar(tools, syntax, tags, is_parallel=is_parallel)
    options = {"temperature": 1.0, "max_tokens": 600, "skip_special_tokens": not tags.ids, **options}
    return SamplingParams(grammar=grammar, **options)


def test_answers_are_calls_of_the_tools_and_nothing_else(llm):
    syntax = syntax_of(llm.tokenizer.chat_template)
    many = 0
    for seed in range(16):
        (result,) = llm.generate("ab", params(llm, seed=seed))
        assert result.finish_reason == "stop"
        content, calls = parse(result.text, syntax, NAMES)
        assert content == ""
        assert calls
        many += len(calls) > 1
        for call in calls:
            given = json.loads(call.arguments)
            assert given == {} if call.name == "now" else set(given) == {"kind", "days"}
            assert given.get("kind") in (None, "sun", "rain")
        if many and seed >= 3:
            break
    assert many


def test_one_call_where_calls_are_not_parallel(llm):
    syntax = syntax_of(llm.tokenizer.chat_template)
    for seed in range(3):
        (result,) = llm.generate("ab", params(llm, seed=seed, is_parallel=False))
        assert len(parse(result.text, syntax, NAMES)[1]) == 1


def test_what_is_forced_is_drafted_and_accepted(llm):
    (result,) = llm.generate("ab", params(llm, TOOLS[:1], seed=1, is_parallel=False))
    plain = params(llm, TOOLS[:1], seed=1, is_parallel=False)
    with LLM(llm.model, "none") as alone:
        assert alone.generate("ab", plain)[0].token_ids == result.token_ids
    assert result.stats.accepted_tokens > 0.6 * result.stats.new_tokens
    assert result.stats.num_steps < 0.4 * result.stats.new_tokens


def test_a_schema_that_cannot_be_followed_is_refused_by_its_reason(llm):
    tool = Tool("f", None, {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}})
    with pytest.raises(ConfigError, match="cannot be used"):
        llm.generate("ab", params(llm, (tool,)))


def test_names_with_quotes_and_schemas_of_their_own(llm):
    syntax = syntax_of(llm.tokenizer.chat_template)
    ref = {
        "$ref": "#/$defs/p",
        "$defs": {"p": {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"]}},
    }
    (result,) = llm.generate("ab", params(llm, (Tool("a-b_9", None, ref),), seed=2, is_parallel=False))
    ((call,),) = [parse(result.text, syntax, ["a-b_9"])[1]]
    assert call.name == "a-b_9"
    assert json.loads(call.arguments)["x"] == 1


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda s: s.name)
def test_a_template_is_recognised_by_what_it_writes(syntax):
    assert syntax_of(TEMPLATES[syntax.name]) is syntax


@pytest.mark.parametrize(
    "template", [None, "", "{{ messages }}", "{{ tools }} <tool_call> <function=f>", "{{ tools }}"]
)
def test_a_template_of_another_kind_is_plain(template):
    assert syntax_of(template).name == "plain"
