"""Tool messages back in: what each template makes of earlier calls and their results."""

import json

import pytest

from foreword.checkpoint.chat_template import ChatTemplate
from foreword.server.tools.grammar import Tool
from foreword.server.tools.messages import with_tools
from foreword.server.tools.parser import parse
from foreword.server.tools.syntax import SYNTAXES
from tests.support.tool_models import TEMPLATES

TOOLS = [Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}}), Tool("now")]


def call(name, arguments, call_id="call_0123456789"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


TALK = [
    {"role": "user", "content": "What is 1 + 2, and the time?"},
    {"role": "assistant", "content": None, "tool_calls": [call("add", '{"a": "é\\"<"}'), call("now", "", "call_2")]},
    {"role": "tool", "tool_call_id": "call_0123456789", "content": "3"},
    {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
    {"role": "assistant", "content": "It is 3."},
]


def rendered(syntax, messages, tools=TOOLS):
    template = ChatTemplate(TEMPLATES[syntax.name], {}, "a model")
    options = {"tools": [tool.described() for tool in tools]} if syntax.in_template and tools else {}
    return template.render(with_tools(messages, tools, syntax), options=options)


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda s: s.name)
def test_earlier_calls_are_written_as_the_model_writes_them(syntax):
    text = rendered(syntax, TALK)
    assert "None" not in text
    assert text.index("Adds.") < text.index("What is") < text.index("3") < text.index("noon") < text.index("It is 3.")
    written = text.partition("<assistant>")[2].partition("\n<tool>" if syntax.in_template else "\n<user>")[0]
    _, calls = parse(written, syntax, ["add", "now"])
    assert [(c.name, json.loads(c.arguments)) for c in calls] == [("add", {"a": 'é"<'}), ("now", {})]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda s: s.name)
def test_arguments_that_are_no_object_are_shown_as_they_are(syntax):
    text = rendered(syntax, [TALK[0], {"role": "assistant", "tool_calls": [call("add", '{"a": ')]}])
    assert '{\\"a\\": ' in text


def test_a_template_without_tools_is_told_in_the_system_message():
    plain = SYNTAXES[-1]
    made = with_tools([{"role": "system", "content": "Be kind."}, *TALK], TOOLS, plain)
    assert made[0]["content"].startswith("Be kind.\n\nYou can call functions.")
    assert [m["role"] for m in made] == ["system", "user", "assistant", "user", "assistant"]
    assert made[3]["content"] == "The result of add: 3\nThe result of now: noon"
    assert with_tools(TALK[:1], TOOLS, plain)[0]["role"] == "system"
    assert with_tools(TALK[:1], [], plain) == TALK[:1]


def test_the_messages_given_are_not_changed():
    before = json.dumps(TALK)
    for syntax in SYNTAXES:
        with_tools(TALK, TOOLS, syntax)
    assert json.dumps(TALK) == before
