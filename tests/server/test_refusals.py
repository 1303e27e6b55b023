"""What is wrong with a request is refused with 400, under the name that the client gave it."""

import asyncio

import pytest

from tests.server.test_chat_api import post
from tests.support.serving import HELLO, client_of, toy_app

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "hello"}, RESPONSES: {"input": "hello"}}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "x"}}}},
}
IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}


@pytest.fixture(scope="module")
def app():
    return toy_app()


def refused(app, path, body):
    response = post(app, path, **BODIES[path] | body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def schema(value):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}}


EVERYWHERE = [
    ({"temperature": -1}, "temperature", "0 for greedy"),
    ({"top_p": 0}, "top_p", "above 0, at most 1"),
    ({"min_p": 2}, "min_p", "from 0 (off) to 1"),
    ({"seed": -1}, "seed", "0 to 2^64 - 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
    ({"stop": [""]}, "stop", "at least one character"),
    ({"stop_token_ids": [999999]}, "stop_token_ids", "outside the vocabulary"),
    ({"logit_bias": {"999999": 1}}, "logit_bias", "outside the vocabulary"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "is empty"),
    ({"bad_words": [""]}, "bad_words", "empty entry"),
    ({"temperature": True}, "temperature", "valid number"),
    ({"temperature": "1"}, "temperature", "valid number"),
    ({"seed": True}, "seed", "valid integer"),
    ({"seed": 1.5}, "seed", "valid integer"),
    ({"stream": "yes"}, "stream", "valid boolean"),
    ({"stream": 1}, "stream", "valid boolean"),
    ({"ignore_eos": "false"}, "ignore_eos", "valid boolean"),
    ({"stop_token_ids": [True]}, "stop_token_ids[0]", "valid integer"),
    ({"logit_bias": {"3": True}}, "logit_bias.3", "valid number"),
    ({"speculative": {"enabled": "no"}}, "speculative.enabled", "valid boolean"),
    ({"speculative": {"num_speculative_tokens": True}}, "speculative.num_speculative_tokens", "valid integer"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least one character"),
    ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice", "at least one character"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "give an expression"),
    ({"guided_choice": []}, "structured_outputs.choice", "at least one character"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
    ({"structured_outputs": {"json": {"type": "thing"}}}, "structured_outputs.json", "Invalid type: thing"),
    ({"structured_outputs": {"json": {"$ref": "#x"}}}, "structured_outputs.json", "does not exist"),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("body", "param", "says"), EVERYWHERE, ids=str)
def test_an_option_is_refused_by_its_name(app, path, body, param, says):
    error = refused(app, path, body)
    assert (error["param"], error["type"]) == (param, "invalid_request_error"), error
    assert says in error["message"], error


OF_ONE = [
    *((path, {"n": n}, "n", "1 to 16") for path in (CHAT, COMPLETIONS) for n in (0, -1, 17, 1000)),
    (CHAT, {"max_tokens": True}, "max_tokens", "valid integer"),
    (COMPLETIONS, {"prompt": [True]}, "prompt", "a list of token ids"),
    (COMPLETIONS, {"prompt": [1] * 9000}, "prompt", "9000"),
    (CHAT, {"messages": [{"role": "user", "content": "hello " * 9000}]}, "messages", "tokens"),
    (RESPONSES, {"input": "hello " * 9000}, "input", "tokens"),
    (CHAT, {"messages": [{"role": "king", "content": "a"}]}, "messages[0].role", "system, developer, user, assistant"),
    (RESPONSES, {"input": [{"role": "king", "content": "a"}]}, "input[0].role", "system, developer, user, assistant"),
    (RESPONSES, {"input": 3}, "input", "a text, or a list of items"),
    (RESPONSES, {"input": [IMAGE]}, "input[0].content[0]", "'input_image'"),
    (CHAT, {"functions": []}, "functions", "use tools"),
    (CHAT, {"function_call": "auto"}, "function_call", "use tool_choice"),
    (CHAT, {"tools": [TOOL], "tool_choice": "required"}, "tools[0].function.parameters", "Invalid type: x"),
    (CHAT, schema([]), "response_format.json_schema.schema", "an object, or true or false"),
    (CHAT, schema({"not": {}}), "response_format", "Unimplemented keys"),
]


@pytest.mark.parametrize(("path", "body", "param", "says"), OF_ONE, ids=lambda value: str(value)[:60])
def test_a_field_of_one_endpoint_is_refused_by_its_name(app, path, body, param, says):
    error = refused(app, path, body)
    assert error["param"] == param, error
    assert says in error["message"], error


def test_a_schema_that_refers_to_itself_without_end_says_so(app):
    assert "refer to itself" in refused(app, CHAT, schema({"$ref": "#"}))["message"]


@pytest.mark.parametrize("path", ["/health", "/"])
def test_head_is_answered_where_proxies_look(app, path):
    async def run():
        async with client_of(app) as client:
            return await client.head(path)

    assert asyncio.run(run()).status_code == 200


def test_offsets_are_places_in_the_text(app):
    """A character of several tokens begins where it begins, for all of them."""
    text = "Hi \U0001f984 there, \U0001f984\U0001f984!"
    tokenizer = app.state.served.tokenizer
    ids = tokenizer.encode(text)
    body = {"prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 0}
    [choice] = post(app, COMPLETIONS, **body).json()["choices"]
    assert choice["text"] == text
    before = [tokenizer.decode(ids[:i]).rstrip("\ufffd") for i in range(len(ids))]
    assert len(set(before)) < len(ids)
    assert choice["logprobs"]["text_offset"] == [len(part) for part in before]
