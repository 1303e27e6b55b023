"""Calls of tools in an answer's text: what each family writes, in any pieces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.server.tools.parser import CallParser, ContentDelta, ParsedCall, joined, parse
from foreword.server.tools.syntax import HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED, PLAIN, SYNTAXES

NAMES = ("get_weather", "add")
OSLO = ParsedCall("get_weather", '{"city": "Oslo"}')
SUM = ParsedCall("add", '{"a": 1, "b": [2, {"c": "}]"}]}')
CALL, SECOND = (
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    '{"arguments": {"a": 1, "b": [2, {"c": "}]"}]}, "name": "add"}',
)
THIRD = CALL.replace("arguments", "parameters")
TAG = "<tool_call>\n"

CASES = [
    (HERMES, f"{TAG}{CALL}\n</tool_call>", "", [OSLO]),
    (HERMES, f"Let me see.\n{TAG}{CALL}\n</tool_call>\n{TAG}{SECOND}\n</tool_call>", "Let me see.", [OSLO, SUM]),
    (HERMES, f"{TAG}{CALL}{TAG}{SECOND}</tool_call>", "", [OSLO, SUM]),
    (HERMES, f"{TAG}{CALL}\n</tool_call> and more", " and more", [OSLO]),
    (HERMES, f"{TAG}[{CALL}, {SECOND}]</tool_call>", "", [OSLO, SUM]),
    (HERMES, f"{TAG}{CALL}", "", [OSLO]),
    (HERMES, f'{TAG}{{"name": "add"}}</tool_call>', "", [ParsedCall("add", "{}")]),
    (HERMES, f'{TAG}{{"name": "add", "arguments": null}}</tool_call>', "", [ParsedCall("add", "{}")]),
    (HERMES, f'{TAG}{{"id": 3, "name": "add", "arguments": "{{\\"a\\": 1}}"}}</tool_call>', "", [ParsedCall("add", '{"a": 1}')]),
    (HERMES, f"{TAG}not a call</tool_call>", f"{TAG}not a call</tool_call>", []),
    (HERMES, f'{TAG}{{"name": 3}}</tool_call>', f'{TAG}{{"name": 3}}</tool_call>', []),
    (HERMES, "a < b <tool <tool_calls", "a < b <tool <tool_calls", []),
    (HERMES, f"<<tool_call>{CALL}</tool_call>", "<", [OSLO]),
    (HERMES, CALL, CALL, []),
    (LLAMA3, THIRD, "", [OSLO]),
    (LLAMA3, f"<|python_tag|>{THIRD}; {SECOND}", "", [OSLO, SUM]),
    (LLAMA3, '{"name": "Anna", "parameters": {}}', '{"name": "Anna", "parameters": {}}', []),
    (LLAMA3, '{"colour": "red"}', '{"colour": "red"}', []),
    (LLAMA3, f"It is {THIRD}", f"It is {THIRD}", []),
    (LLAMA3, " [1, 2]", " [1, 2]", []),
    (MISTRAL, f"[TOOL_CALLS] [{CALL}, {SECOND}]", "", [OSLO, SUM]),
    (MISTRAL, f"Wait. [TOOL_CALLS][{CALL}]", "Wait.", [OSLO]),
    (MISTRAL, "a list [TOOLS]", "a list [TOOLS]", []),
    (MISTRAL_NAMED, f"[TOOL_CALLS]get_weather[ARGS]{OSLO.arguments}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{SUM.arguments}", "", [OSLO, SUM]),
    (MISTRAL_NAMED, f"[TOOL_CALLS][{CALL}]", "", [OSLO]),
    (MISTRAL_NAMED, "[TOOL_CALLS]nothing\nmore", "[TOOL_CALLS]nothing\nmore", []),
    (PLAIN, f"\n{CALL}\n{SECOND}\n", "", [OSLO, SUM]),
    (PLAIN, f"[{CALL}, {SECOND}]", "", [OSLO, SUM]),
    (PLAIN, f"{CALL} Done.", "Done.", [OSLO]),
    (PLAIN, "", "", []),
    (PLAIN, " \n", " \n", []),
]  # fmt: skip


@pytest.mark.parametrize(("syntax", "text", "content", "calls"), CASES)
def test_what_is_read(syntax, text, content, calls):
    assert parse(text, syntax, NAMES) == (content, calls)


def in_pieces(text, cuts, syntax, **options):
    parser = CallParser(syntax, NAMES, **options)
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    deltas = [d for a, b in zip(edges, edges[1:], strict=False) for d in parser.feed(text[a:b])]
    return [*deltas, *parser.finish()]


PARTS = [
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    CALL,
    SECOND,
    THIRD,
    "add",
    "{}",
    "\n",
]
PARTS += [" ", "[", "]", ",", ";", "{", "}", '"', "\\", "name", "text", CALL[:20], '{"name": "add", "arguments": {']
texts = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=12).map("".join)


@settings(max_examples=150, deadline=None)
@given(syntax=st.sampled_from(SYNTAXES), text=texts, cuts=st.lists(st.integers(0, 400), max_size=30))
def test_pieces_do_not_matter(syntax, text, cuts):
    whole = parse(text, syntax, NAMES)
    assert joined(in_pieces(text, cuts, syntax)) == whole
    assert joined(in_pieces(text, range(len(text)), syntax)) == whole
    if not whole[1]:
        assert whole[0] == text


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


HELD = {
    HERMES: f"{TAG}{CALL}\n</tool_call>\n{TAG}{SECOND}\n</tool_call>",
    LLAMA3: f"{THIRD}; {THIRD}",
    MISTRAL: f"[TOOL_CALLS][{CALL}, {SECOND}]",
    MISTRAL_NAMED: f"[TOOL_CALLS]get_weather[ARGS]{OSLO.arguments}[TOOL_CALLS]add[ARGS]{SUM.arguments}",
    PLAIN: f"{CALL}\n{SECOND}",
}


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("syntax", HELD, ids=lambda syntax: syntax.name)
def test_an_answer_that_is_cut_anywhere_says_whether_its_calls_are_whole(syntax, is_held):
    text = HELD[syntax]
    for end in range(len(text) + 1):
        parser = CallParser(syntax, NAMES, is_held=is_held)
        content, calls = joined([*parser.feed(text[:end]), *parser.finish(is_cut=True)])
        if parser.is_whole:
            assert all(is_json(call.arguments) for call in calls), text[:end]
        if is_held:
            assert content == "", text[:end]
        if end == len(text):
            assert len(calls) == 2
            assert parser.is_whole


@pytest.mark.parametrize("text", ["[", "[[", " [ ", "[,", "{", ";", "[1, 2]"])
@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_an_answer_without_a_call_is_its_text_to_the_last_character(syntax, text):
    """An answer of an opening bracket alone was taken for an empty list of calls, and lost."""
    assert parse(text, syntax, NAMES) == (text, [])


@settings(max_examples=200, deadline=None)
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
    arguments=st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5)),
    before=st.text(max_size=20).filter(lambda t: "<" not in t),
    cuts=st.lists(st.integers(0, 400), max_size=30),
)
def test_any_arguments_come_back_and_tags_are_never_content(names, arguments, before, cuts):
    calls = [ParsedCall(name, json.dumps(arguments, ensure_ascii=False)) for name in names]
    texts = [f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in calls]
    text = before + "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in texts)
    deltas = in_pieces(text, cuts, HERMES)
    content, found = joined(deltas)
    assert found == calls
    assert content == before.rstrip(" \t\r\n")
    assert not any(isinstance(d, ContentDelta) and "<" in d.text for d in deltas)


@pytest.mark.parametrize("length", range(1, len(TAG + CALL)))
def test_an_answer_that_is_cut_shows_no_half_of_a_tag(length):
    content, calls = parse("Hm. " + (TAG + CALL)[:length], HERMES, NAMES, is_cut=True)
    assert content.strip() in ({"Hm.", "Hm. <"} if length == 1 else {"Hm."})
    if calls:
        assert OSLO.arguments.startswith(calls[0].arguments)


def test_most_calls():
    parser = CallParser(HERMES, NAMES, max_calls=1)
    deltas = [*parser.feed(f"{TAG}{CALL}</tool_call>{TAG}{SECOND}</tool_call>end"), *parser.finish()]
    assert joined(deltas) == ("end", [OSLO])


def test_arguments_stream_as_they_come():
    parser = CallParser(HERMES, NAMES)
    assert parser.feed(TAG + '{"name": "add", "argum') == []
    (start,) = parser.feed('ents": {"a')
    assert (start.name, start.arguments) == ("add", '{"a')
    (more,) = parser.feed('": 1')
    assert (more.index, more.name, more.arguments) == (0, None, '": 1')
