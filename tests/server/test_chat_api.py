"""Chat completions as the `openai` SDK reads them, and as plain HTTP."""

import asyncio

import pytest

from foreword.sampling.params import SamplingParams
from tests.support.serving import HELLO, chat_tokenizer, client_of, openai_of, sse_data, toy_app


def ask(app, **body):
    """The answer of one request, as the SDK's type."""

    async def run():
        async with openai_of(app) as client:
            return await client.chat.completions.create(model="toy", messages=HELLO, **body)

    return asyncio.run(run())


def post(app, path="/v1/chat/completions", **body):
    """The response to a body as it is."""

    async def run():
        async with client_of(app) as client:
            return await client.post(path, json=body)

    return asyncio.run(run())


def python_answers(app, **params):
    """What the engine says to the same request in this process."""
    served = app.state.served

    async def run():
        return await served.llm.generate(served.tokenizer.apply_chat_template(HELLO), SamplingParams(**params))

    return asyncio.run(run())


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.8, "seed": 1, "top_p": 0.7}]
)
def test_the_tokens_are_those_of_python(options):
    app = toy_app()
    expected = python_answers(app, max_tokens=24, **options)[0]
    answer = post(app, messages=HELLO, max_tokens=24, return_token_ids=True, **options).json()
    assert answer["choices"][0]["token_ids"] == expected.token_ids
    assert answer["choices"][0]["message"]["content"] == expected.text


def test_an_answer_is_what_the_sdk_expects():
    answer = ask(toy_app(), max_tokens=8)
    assert answer.object == "chat.completion"
    assert answer.model == "toy"
    assert answer.id.startswith("chatcmpl-")
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_a_streamed_answer_is_the_same_text():
    app = toy_app()
    whole = ask(app, max_tokens=30).choices[0].message.content

    async def run():
        async with openai_of(app) as client:
            stream = await client.chat.completions.create(
                model="toy", messages=HELLO, max_tokens=30, stream=True, stream_options={"include_usage": True}
            )
            return [chunk async for chunk in stream]

    chunks = asyncio.run(run())
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert deltas[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in deltas) == whole
    assert [choice.finish_reason for choice in deltas if choice.finish_reason] == ["length"]
    assert chunks[-1].usage.completion_tokens == 30
    assert not chunks[-1].choices
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_n_answers_are_those_of_n_in_python(streamed):
    app = toy_app()
    options = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 12}
    expected = [result.token_ids for result in python_answers(app, **options)]
    response = post(app, messages=HELLO, return_token_ids=True, stream=streamed, **options)
    if not streamed:
        assert [choice["token_ids"] for choice in response.json()["choices"]] == expected
        return
    found = [[], [], []]
    for chunk in sse_data(response.text):
        for choice in chunk["choices"]:
            found[choice["index"]] += choice.get("token_ids", [])
    assert found == expected


@pytest.mark.parametrize("streamed", [False, True])
def test_log_probabilities_come_with_every_token(streamed):
    app = toy_app()
    [expected] = python_answers(app, max_tokens=6, logprobs=2)
    response = post(app, messages=HELLO, max_tokens=6, logprobs=True, top_logprobs=2, stream=streamed)
    if streamed:
        parts = [choice["logprobs"] for chunk in sse_data(response.text) for choice in chunk["choices"]]
        content = [entry for part in parts if part for entry in part["content"]]
    else:
        content = response.json()["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [p.logprob for p in expected.logprobs]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert bytes(content[0]["bytes"]) == chat_tokenizer().token_bytes(expected.token_ids[0])


def test_a_schema_holds_the_answer_and_parse_reads_it():
    import pydantic

    class Color(pydantic.BaseModel):
        red: bool

    async def run(app):
        async with openai_of(app) as client:
            return await client.chat.completions.parse(
                model="toy", messages=HELLO, response_format=Color, max_tokens=200, temperature=1.0, seed=3
            )

    answer = asyncio.run(run(toy_app()))
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Color)


def test_content_may_come_in_parts_and_developer_means_system():
    app = toy_app()
    parts = [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, *HELLO]
    whole = [{"role": "system", "content": "ab"}, *HELLO]
    options = {"max_tokens": 5, "return_token_ids": True}
    first, second = (post(app, messages=messages, **options).json() for messages in (parts, whole))
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]


def test_the_last_message_is_continued():
    app = toy_app()
    messages = [*HELLO, {"role": "assistant", "content": "hello world"}]
    answer = post(
        app,
        messages=messages,
        continue_final_message=True,
        add_generation_prompt=False,
        max_tokens=4,
        return_token_ids=True,
    ).json()
    text = post(
        app, "/v1/completions", prompt="<user>hello\n<assistant>hello world", max_tokens=4, return_token_ids=True
    )
    assert answer["choices"][0]["token_ids"] == text.json()["choices"][0]["token_ids"]


def test_a_prediction_is_counted():
    app = toy_app()
    [said] = python_answers(app, max_tokens=40)
    answer = post(app, messages=HELLO, max_tokens=40, prediction={"type": "content", "content": said.text}).json()
    details = answer["usage"]["completion_tokens_details"]
    predicted = app.state.served.tokenizer.encode(said.text, add_special_tokens=False)
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == len(predicted)
    assert details["accepted_prediction_tokens"] > len(predicted) // 2
    other = post(app, messages=HELLO, max_tokens=40, prediction={"type": "content", "content": "@"}).json()
    assert other["choices"] == answer["choices"]


@pytest.mark.parametrize("streamed", [False, True])
def test_speculation_is_told_per_token(streamed):
    app = toy_app()
    response = post(app, messages=HELLO, max_tokens=40, include_speculation=True, stream=streamed)
    if streamed:
        choices = [choice for chunk in sse_data(response.text) for choice in chunk["choices"]]
        parts = [choice["speculation"] for choice in choices if "speculation" in choice]
        tokens = [token for part in parts for token in part["tokens"]]
        last, text = parts[-1], "".join(choice["delta"].get("content", "") for choice in choices)
    else:
        [choice] = response.json()["choices"]
        last, text = choice["speculation"], choice["message"]["content"]
        tokens = last["tokens"]
    assert len(tokens) == last["new_tokens"] == 40
    assert "".join(token["text"] for token in tokens) == text
    assert sum(token["drafter"] is not None for token in tokens) == last["accepted_tokens"]
    assert sum(last["accepted_at_depth"]) == last["accepted_tokens"] == sum(last["accepted_tokens_by"].values())


def test_speculation_is_turned_off_for_one_request():
    app = toy_app()
    options = {"messages": HELLO, "max_tokens": 40, "include_speculation": True}
    plain = post(app, **options, speculative={"enabled": False}).json()["choices"][0]
    drafted = post(app, **options).json()["choices"][0]
    assert plain["speculation"]["drafted_tokens"] == 0 < drafted["speculation"]["drafted_tokens"]
    assert plain["message"] == drafted["message"]


def test_a_prefix_that_was_read_is_counted_as_cached():
    app = toy_app()
    long = [{"role": "user", "content": "hello world" * 40}]
    first, second = (post(app, messages=long, max_tokens=4).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == second["usage"]["prompt_tokens"] - 1
    assert first["choices"] == second["choices"]


REFUSED = {
    "another model": ({"model": "gpt-5"}, 404, "model"),
    "no messages": ({"messages": []}, 400, "messages"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        None,
    ),
    "no content": ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    "temperature": ({"temperature": -1}, 400, None),
    "a wrong type": ({"temperature": "hot"}, 400, "temperature"),
    "n": ({"n": 1000}, 400, "n"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 1000}, 400, "logprobs"),
    "top_logprobs alone": ({"top_logprobs": 1}, 400, "top_logprobs"),
    "sound": ({"modalities": ["audio"]}, 400, "modalities"),
    "audio": ({"audio": {"voice": "x"}}, 400, None),
    "functions": ({"functions": [{"name": "f"}]}, 400, None),
    "an unknown format": ({"response_format": {"type": "xml"}}, 400, "response_format.type"),
    "a format without a schema": ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
    "two formats": ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, 400, None),
    "a large schema": ({"guided_json": {"enum": ["a" * 70_000]}}, 400, "structured_outputs.json"),
    "a broken regex": ({"guided_regex": "("}, 400, None),
    "logit_bias": ({"logit_bias": {"hello": 1}}, 400, "logit_bias"),
    "a token outside": ({"logit_bias": {"999999": 1}}, 400, None),
    "min_tokens": ({"min_tokens": 9, "max_tokens": 3}, 400, "min_tokens"),
    "a long prompt": ({"messages": [{"role": "user", "content": "a" * 5000}]}, 400, "messages"),
    "an empty end": ({"stop": ""}, 400, None),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(name, streamed):
    body, status, param = REFUSED[name]
    response = post(toy_app(), **{"messages": HELLO, "max_tokens": 4, "stream": streamed} | body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] in ("invalid_request_error", "not_found_error")
    if param:
        assert error["param"] == param


def test_a_prompt_over_the_context_says_both_lengths():
    response = post(toy_app(), messages=[{"role": "user", "content": "a" * 5000}])
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "4096" in error["message"]
    assert "50" in error["message"]


def test_unknown_fields_are_ignored_and_told_once(caplog):
    caplog.set_level("INFO", "foreword.server.wire.common")
    app = toy_app()
    for _ in range(2):
        assert post(app, messages=HELLO, max_tokens=2, some_new_field_of_1999=1).status_code == 200
    assert sum("some_new_field_of_1999" in record.message for record in caplog.records) == 1


def test_a_model_without_a_template_says_so():
    response = post(toy_app(template=None), messages=HELLO)
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "expected"), [({}, True), ({"speculative": {}}, True), ({"speculative": {"remember": False}}, False)]
)
def test_an_answer_may_be_kept_out_of_the_memory(sent, expected):
    from foreword.server.requests import drafting_params
    from foreword.server.wire.chat import ChatRequest

    asked = ChatRequest.model_validate({"messages": [{"role": "user", "content": "a"}], **sent})
    assert drafting_params(asked).remember is expected
