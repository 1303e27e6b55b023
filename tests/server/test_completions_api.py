"""Completions, the tokenizer's endpoints, and what a server says of itself."""

import asyncio

import pytest

from foreword.sampling.params import SamplingParams
from tests.server.test_chat_api import post
from tests.support.serving import HELLO, client_of, openai_of, sse_data, toy_app


def python_answers(app, prompts, **params):
    async def run():
        return await app.state.served.llm.generate(prompts, SamplingParams(**params))

    return asyncio.run(run())


def get(app, path):
    async def run():
        async with client_of(app) as client:
            return await client.get(path)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "prompt",
    ["hello world", [1, 2, 3], ["hello", " world", "a"], [[1, 2], [3]]],
    ids=["text", "ids", "texts", "lists of ids"],
)
def test_one_prompt_or_many_as_text_or_ids(prompt):
    app = toy_app()
    expected = python_answers(app, prompt, max_tokens=6, n=2, temperature=1.0, seed=4)
    answer = post(
        app, "/v1/completions", prompt=prompt, max_tokens=6, n=2, temperature=1.0, seed=4, return_token_ids=True
    ).json()
    assert [choice["token_ids"] for choice in answer["choices"]] == [result.token_ids for result in expected]
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    num_prompt = sum(len(result.prompt_token_ids) for result in expected if result.sample_index == 0)
    assert answer["usage"]["prompt_tokens"] == num_prompt
    assert answer["usage"]["completion_tokens"] == sum(len(result.token_ids) for result in expected)


def test_without_max_tokens_sixteen():
    assert post(toy_app(), "/v1/completions", prompt="hello").json()["usage"]["completion_tokens"] == 16


def test_the_sdk_reads_it_whole_and_streamed():
    app = toy_app()

    async def run():
        async with openai_of(app) as client:
            whole = await client.completions.create(model="toy", prompt="hello", max_tokens=20, logprobs=1)
            stream = await client.completions.create(
                model="toy", prompt="hello", max_tokens=20, logprobs=1, stream=True
            )
            return whole, [chunk async for chunk in stream]

    whole, chunks = asyncio.run(run())
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    tokens = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.tokens]
    assert tokens == whole.choices[0].logprobs.tokens
    assert len(tokens) == 20


@pytest.mark.parametrize("max_tokens", [3, 0])
def test_echo_brings_the_prompt_and_its_log_probabilities(max_tokens):
    app = toy_app()
    options = {"max_tokens": max_tokens, "logprobs": 1}
    [expected] = python_answers(app, "hello world again", **options, prompt_logprobs=1)
    [choice] = post(app, "/v1/completions", prompt="hello world again", echo=True, **options).json()["choices"]
    assert choice["text"] == "hello world again" + expected.text
    found = choice["logprobs"]
    entries = [*expected.prompt_logprobs, *expected.logprobs]
    assert len(entries) == len(expected.prompt_token_ids) + max_tokens > 2
    assert found["token_logprobs"] == [None if p is None else p.logprob for p in entries]
    assert len({len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
    assert (
        post(app, "/v1/completions", prompt="hello world", max_tokens=0, echo=True).json()["choices"][0]["text"]
        == "hello world"
    )


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ""}, {"prompt": []}, {"prompt": [[]]}, {"prompt": [-1]}, {"prompt": [999999]}, {"prompt": {"a": 1}},
        {"prompt": ["a"] * 1000}, {"prompt": "a", "suffix": "b"}, {"prompt": "a", "best_of": 4}, {"prompt": "a", "max_tokens": -1},
        {"prompt": ["a", "b"], "stream": True}, {"prompt": "a", "logprobs": 10_000}, {},
    ],
    ids=lambda body: str(body)[:40],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(body):
    response = post(toy_app(), "/v1/completions", **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/completions", {"prompt": [-1]}, ["prompt is none of", "a text", "list of token ids, 0 or above"]),
        ("/v1/completions", {"prompt": ["a", [1]]}, ["prompt is none of", "a list of texts"]),
        ("/v1/completions", {"prompt": "a", "stop": [5]}, ["stop is none of", "a text, or a list of texts"]),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, ["messages[0].content is none of"]),
        ("/v1/chat/completions", {"messages": HELLO, "tool_choice": 5}, ["tool_choice is none of", "an object"]),
        ("/v1/responses", {"input": 5}, ["input is none of"]),
    ],
    ids=str,
)
def test_a_field_of_several_kinds_says_all_of_them(path, body, names):
    error = post(toy_app(), path, **body).json()["error"]
    assert all(name in error["message"] for name in names), error
    assert error["param"] == error["message"].split(" ")[0]


def test_models_are_listed_and_looked_up():
    app = toy_app()

    async def run():
        async with openai_of(app) as client:
            return await client.models.list(), await client.models.retrieve("toy")

    listed, found = asyncio.run(run())
    assert [model.id for model in listed.data] == ["toy"]
    assert found.id == "toy"
    missing = get(app, "/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_tokens_there_and_back():
    app = toy_app()
    found = post(app, "/tokenize", prompt="hello world").json()
    assert found["count"] == len(found["tokens"]) == 2
    assert found["max_model_len"] == 4096
    assert post(app, "/detokenize", tokens=found["tokens"]).json() == {"prompt": "hello world"}
    chat = post(app, "/tokenize", messages=HELLO).json()["tokens"]
    assert chat == app.state.served.tokenizer.apply_chat_template(HELLO)
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": HELLO}),
        ("/detokenize", {"tokens": [99999]}),
    ):
        assert post(app, path, **body).status_code == 400


def test_metrics_have_the_names_that_dashboards_read():
    app = toy_app()
    answer = post(app, messages=HELLO, max_tokens=40, include_speculation=True).json()
    lines = dict(line.rsplit(" ", 1) for line in get(app, "/metrics").text.splitlines() if not line.startswith("#"))

    def value(name: str, **labels: str) -> float:
        pairs = {"engine": "0", "model_name": "toy"} | labels
        return float(lines[name + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(pairs.items())) + "}"])

    counts = answer["choices"][0]["speculation"]
    assert value("vllm:generation_tokens_total") == 40
    assert value("vllm:prompt_tokens_total") == answer["usage"]["prompt_tokens"]
    assert value("vllm:spec_decode_num_draft_tokens_total") == counts["drafted_tokens"] > 0
    assert value("vllm:spec_decode_num_accepted_tokens_total") == counts["accepted_tokens"]
    assert value("vllm:spec_decode_num_drafts_total") == counts["drafted_at_depth"][0]
    if counts["accepted_at_depth"]:
        assert (
            value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position="0") == counts["accepted_at_depth"][0]
        )
    assert value("vllm:time_to_first_token_seconds_count") == 1
    assert value("vllm:request_success_total", finished_reason="length") == 1
    assert value("foreword:drafted_tokens_total", drafter="ngram") == counts["drafted_tokens"]
    assert value("foreword:plans_total", reason="reading the prompt") == 1
    assert (
        value("foreword:plans_total", reason="fixed size")
        + value("foreword:plans_total", reason="only N tokens may still come")
        == value("foreword:steps_total") - 1
    )


def test_status_is_what_the_page_reads():
    app = toy_app()
    post(app, messages=HELLO, max_tokens=4)
    status = get(app, "/v1/status").json()
    assert status["model"]["name"] == "toy"
    assert status["engine"]["generated_tokens"] == 4
    assert {"memory", "uptime_s", "version"} <= status.keys()


def test_the_page_comes_with_a_policy():
    response = get(toy_app(), "/")
    assert response.status_code == 200
    assert response.text.startswith("<!doctype html>")
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_health_tells_of_an_engine_that_has_ended():
    app = toy_app()
    assert get(app, "/health").json() == {"status": "ok"}
    asyncio.run(app.state.served.llm.close())
    assert get(app, "/health").status_code == 503
    refused = post(app, messages=HELLO)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]


def test_an_unknown_path_and_method_are_told_as_errors_of_the_api():
    app = toy_app()
    assert get(app, "/v1/engines").json()["error"]["type"] == "not_found_error"
    assert get(app, "/v1/chat/completions").status_code == 405
    assert sse_data(post(app, messages=HELLO, max_tokens=1, stream=True).text)
