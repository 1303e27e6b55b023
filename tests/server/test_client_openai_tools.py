"""Tools over chat completions, as the `openai` SDK uses them."""

import asyncio
import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from tests.support.tool_models import TEMPLATES
from tests.support.tool_serving import NOW, WEATHER, tool_server

ASK = [{"role": "user", "content": "Will it rain?"}]
WRITTEN = {
    "hermes": 'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama3": '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]',
    "mistral-named": '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}',
    "plain": '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n{"name": "now", "arguments": {}}',
}


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def served(request, tmp_path_factory):
    with tool_server(tmp_path_factory.mktemp("served"), request.param) as server:
        server.written = WRITTEN[request.param]
        yield server


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.url, api_key="unused", max_retries=0) as client:
        yield client


def ask(client, tools=(WEATHER, NOW), **options):
    options = {"messages": ASK, "model": "tiny", "temperature": 1, "seed": 3, "max_tokens": 600} | options
    return client.chat.completions.create(tools=list(tools), **options)


def test_calls_of_the_models_own_accord(served, client):
    with served.saying(served.written):
        [choice] = ask(client).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == ("Let me see." if "Let me see" in served.written else None)
    first, second = choice.message.tool_calls
    assert (first.function.name, json.loads(first.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert (second.function.name, second.function.arguments) == ("now", "{}")
    assert first.id != second.id


def test_streamed_deltas_add_up(served, client):
    with served.saying(served.written):
        chunks = list(ask(client, stream=True))
    calls = {}
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or ():
            if call.id:
                calls[call.index] = [call.function.name, ""]
            calls[call.index][1] += call.function.arguments
    assert [(name, json.loads(text)) for name, text in calls.values()] == [
        ("get_weather", {"city": "Oslo"}),
        ("now", {}),
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert "<" not in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_the_sdk_accumulates_the_stream(served, client):
    options = {"messages": ASK, "model": "tiny", "tools": [WEATHER, NOW], "max_tokens": 600}
    with served.saying(served.written), client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    assert [call.function.name for call in final.choices[0].message.tool_calls] == ["get_weather", "now"]


@pytest.mark.parametrize("stream", [False, True])
def test_required_and_named_calls_fit_their_schema(served, client, stream):
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice, options in (("required", {"parallel_tool_calls": False}), (named, {})):  # a named one is one call
        answer = ask(client, tool_choice=choice, stream=stream, **options)
        if stream:
            deltas = [chunk.choices[0].delta for chunk in answer]
            calls = [call for delta in deltas for call in delta.tool_calls or ()]
            name, text = calls[0].function.name, "".join(call.function.arguments for call in calls)
            assert not any(delta.content for delta in deltas)
        else:
            [call] = answer.choices[0].message.tool_calls
            name, text = call.function.name, call.function.arguments
            assert answer.choices[0].finish_reason == "tool_calls"
        given = json.loads(text)
        if name == "get_weather":
            assert given["city"] in ("Oslo", "Rome")
            assert set(given) <= {"city", "in_days"}
        else:
            assert choice == "required"
            assert given == {}


def added_up(answer, stream):
    """Content, the arguments of the calls, and why the answer ended."""
    if not stream:
        message = answer.choices[0].message
        return (
            message.content,
            [c.function.arguments for c in message.tool_calls or ()],
            answer.choices[0].finish_reason,
        )
    content, calls, reason = "", {}, None
    for chunk in answer:
        choice = chunk.choices[0]
        content, reason = content + (choice.delta.content or ""), choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            calls[call.index] = calls.get(call.index, "") + (call.function.arguments or "")
    return content, list(calls.values()), reason


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_that_is_cut_is_not_told_as_a_call(served, client, stream):
    for max_tokens in (1, 2, 3, 5, 8, 12, 17, 23, 30, 40, 60):
        answer = ask(client, tool_choice="required", max_tokens=max_tokens, stream=stream)
        content, calls, reason = added_up(answer, stream)
        assert not content
        assert reason in ("length", "tool_calls")
        if reason == "tool_calls":
            assert all(json.loads(text) is not None for text in calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["{", '"', "Oslo", "city", "name"])
def test_stop_strings_do_not_cut_a_required_call(served, client, stream, stop):
    answer = ask(client, tools=[WEATHER], tool_choice="required", stop=[stop], parallel_tool_calls=False, stream=stream)
    _, [arguments], reason = added_up(answer, stream)
    assert json.loads(arguments)["city"] in ("Oslo", "Rome")
    assert reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_its_own_accord_that_a_stop_string_cuts_is_no_whole_call(served, client, stream):
    with served.saying(served.written):
        answer = ask(client, stop=["Oslo"], stream=stream)
        _, [arguments], reason = added_up(answer, stream)
    assert "Oslo" not in arguments
    assert reason == "stop"


def test_one_call_where_they_are_not_parallel(served, client):
    with served.saying(served.written):
        [call] = ask(client, parallel_tool_calls=False).choices[0].message.tool_calls
    assert call.function.name == "get_weather"


def test_no_call_where_none_is_wanted(served, client):
    text = "no calls here"
    with served.saying(text):
        for options in ({"tool_choice": "none"}, {}):
            [choice] = ask(client, **options).choices
            assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")


def test_results_go_back_in(served, client):
    with served.saying(served.written):
        message = ask(client).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in message.tool_calls]
    with served.saying("It will be fine."):
        answer = ask(client, messages=[*ASK, message, *results])
    assert answer.choices[0].message.content == "It will be fine."


class Weather(BaseModel):
    city: Literal["Oslo", "Rome"]
    in_days: bool


def test_parse_with_pydantic(served, client):
    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    options = {
        "model": "tiny",
        "messages": ASK,
        "tools": [tool],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    [choice] = client.chat.completions.parse(**options, max_tokens=600).choices
    assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Weather)


def test_an_async_client(served):
    async def run():
        async with openai.AsyncOpenAI(base_url=served.url, api_key="unused", max_retries=0) as client:
            return [chunk async for chunk in await ask(client, stream=True)]

    with served.saying(served.written):
        chunks = asyncio.run(run())
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


WRONG = [
    ({"tools": [WEATHER, WEATHER]}, "two tools"),
    ({"tools": [{"type": "web_search"}]}, "web_search"),
    ({"tools": [{"type": "function"}]}, "has no function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "letters"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "no schema of an object"),
    ({"tool_choice": "any"}, "any"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "there are: get_weather, now"),
    ({"tool_choice": {"type": "allowed_tools"}}, "allowed_tools"),
    ({"tools": [], "tool_choice": "required"}, "no tools"),
    ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "at once"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool_calls"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_is_wrong_is_refused_by_name(served, client, options, words):
    with pytest.raises(openai.BadRequestError, match=words):
        ask(client, **options)
