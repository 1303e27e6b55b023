"""The Responses API, as the `openai` SDK uses it."""

import asyncio
import json
from typing import Literal

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from tests.support.tool_serving import CITY, tool_server

FLAT = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": CITY}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with tool_server(tmp_path_factory.mktemp("responses")) as server:
        yield server


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.url, api_key="unused", max_retries=0) as client:
        yield client


def ask(client, **options):
    return client.responses.create(**({"model": "tiny", "input": "Will it rain?", "max_output_tokens": 200} | options))


class Weather(BaseModel):
    city: Literal["Oslo", "Rome"]
    in_days: bool


def checked(response):
    """Against the SDK's own type, strictly: it fills in what is missing otherwise."""
    return Response.model_validate(response.model_dump(by_alias=True), strict=False)


def test_text(served, client):
    with served.saying("Not today."):
        response = ask(client, instructions="Be short.", metadata={"a": "b"})
    assert checked(response).output_text == "Not today."
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert response.usage.output_tokens > 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.instructions, response.metadata, response.store) == ("Be short.", {"a": "b"}, False)


def test_the_words_are_those_of_chat(client):
    options = {"temperature": 0.9, "seed": 4}
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "ab"}], max_tokens=40, **options
    )  # fmt: skip
    response = ask(
        client, instructions="Be kind.", input="ab", max_output_tokens=40, temperature=0.9, extra_body={"seed": 4}
    )
    assert response.output_text == answer.choices[0].message.content
    assert response.usage.input_tokens == answer.usage.prompt_tokens
    parts = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "ab"}]},
    ]
    again = ask(client, input=parts, max_output_tokens=40, temperature=0.9, extra_body={"seed": 4})
    assert again.output_text == response.output_text


EVENTS = {
    "message": ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"],
    "function_call": ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("It rains.", ["message"]), (CALL, ["function_call"]), (f"See.\n{CALL}\n{CALL}", ["message", "function_call", "function_call"])],
)  # fmt: skip
def test_typed_events_in_their_order(served, client, text, kinds):
    with served.saying(text):
        events = list(ask(client, stream=True, tools=[FLAT]))
    names = [event.type.removeprefix("response.") for event in events]
    once = [name for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
    assert once == ["created", "in_progress", *(name for kind in kinds for name in EVENTS[kind]), "completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = checked(events[-1].response)
    assert [item.type for item in final.output] == kinds
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump() for item in done] == [item.model_dump() for item in final.output]
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == final.output_text


def test_a_stream_says_what_a_whole_answer_says(served, client):
    with served.saying(f"See.\n{CALL}"):
        whole = ask(client, tools=[FLAT])
        with client.responses.stream(
            model="tiny", input="Will it rain?", max_output_tokens=200, tools=[FLAT]
        ) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_response()
    for one, other in zip(whole.output, streamed.output, strict=True):
        ids = {"id", "call_id", "parsed_arguments", "content"}
        assert one.model_dump(exclude=ids) == other.model_dump(exclude=ids)
    assert whole.output_text == streamed.output_text == "See."


def test_calls_and_results_go_back_in(served, client):
    with served.saying(f"See.\n{CALL}"):
        first = ask(client, tools=[FLAT])
    message, call = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    with served.saying("No."):
        question = {"role": "user", "content": "Will it rain?"}
        second = ask(client, input=[question, message, call, result], tools=[FLAT])
    assert second.output_text == "No."
    made = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": call.arguments}}
    chat = [
        question,
        {"role": "assistant", "content": "See.", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "sun"},
    ]
    tool = {"type": "function", "function": {k: v for k, v in FLAT.items() if k != "type"}}
    with served.saying("No."):
        answer = client.chat.completions.create(model="tiny", messages=chat, tools=[tool], max_tokens=50)
    assert second.usage.input_tokens == answer.usage.prompt_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_calls_that_must_be_made(client, choice):
    response = ask(client, tools=[FLAT], tool_choice=choice, parallel_tool_calls=False, temperature=1)
    [call] = checked(response).output
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")


def test_parse_with_pydantic(client):
    response = client.responses.parse(model="tiny", input="ab", text_format=Weather, max_output_tokens=200)
    assert isinstance(response.output_parsed, Weather)
    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    options = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    response = client.responses.parse(model="tiny", input="ab", max_output_tokens=200, **options)
    assert isinstance(response.output[0].parsed_arguments, Weather)


def test_an_answer_that_is_cut_is_incomplete(served, client):
    with served.saying("It will not rain today."):
        response = ask(client, max_output_tokens=4)
        last = list(ask(client, max_output_tokens=4, stream=True))[-1]
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    assert last.type == "response.incomplete"
    assert last.response.output_text == response.output_text


def test_logprobs(client):
    response = ask(client, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=3)
    assert len(response.output[0].content[0].logprobs) == 3
    assert len(response.output[0].content[0].logprobs[0].top_logprobs) == 2


def test_an_async_client(served):
    async def run():
        async with openai.AsyncOpenAI(base_url=served.url, api_key="unused", max_retries=0) as client:
            whole = await ask(client)
            return whole, [event async for event in await ask(client, stream=True)]

    with served.saying("Yes."):
        whole, events = asyncio.run(run())
    assert whole.output_text == events[-1].response.output_text == "Yes."


def test_a_request_that_fails_on_its_way_says_so(served, client, monkeypatch):
    def broken(self, *_):
        raise ValueError("planted")

    monkeypatch.setattr("foreword.engine.submission.Answer.take", broken)
    last = list(ask(client, stream=True))[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error.code == "server_error"
    assert "planted" not in last.response.error.message


WRONG = [
    ({"store": True}, "store is not supported"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt is not supported"),
    ({"truncation": "auto"}, "truncation"),
    ({"tools": [{"type": "web_search"}]}, "web_search"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [FLAT], "tool_choice": {"type": "file_search"}}, "file_search"),
    ({"input": []}, "input is empty"),
    ({"input": [{"type": "computer_call_output"}]}, "computer_call_output"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "f"}]}, "output"),
    ({"input": [{"role": "user"}]}, "content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
    ({"input": [{"type": "reasoning"}]}, "no message"),
    ({"text": {"format": {"type": "grammar"}}}, "grammar"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "schema"),
    ({"extra_body": {"n": 2}}, "n is not supported"),
    ({"max_output_tokens": -1}, "max_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"), WRONG, ids=[f"{place}-{words}" for place, (_, words) in enumerate(WRONG)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_refused_by_name(client, options, words, stream):
    with pytest.raises(openai.BadRequestError, match=words):
        ask(client, stream=stream, **options)
