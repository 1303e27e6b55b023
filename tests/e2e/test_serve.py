"""The default model behind the OpenAI API says what `generate` says, alone and beside others, drafted for or not."""

import asyncio

import pytest

from foreword.engine.async_llm import AsyncLLM
from foreword.sampling.params import SamplingParams

pytest.importorskip("fastapi", reason="the server's packages are not installed: pip install 'foreword[serve]'")

from foreword.server.app import create_app
from foreword.server.settings import ServerSettings
from tests.support.serving import openai_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("without_shape_checks")]

ASKED = [
    ("What is gravity?", {}),
    ("Write a Python function that reverses a string, then explain each line.", {}),
    ("Translate to French: The weather is nice today.", {"temperature": 0.8, "seed": 7}),
    ("Name three colours.", {"temperature": 1.0, "seed": 3, "top_p": 0.9}),
]


def test_over_http_as_in_python(native_default_model):
    llm = AsyncLLM(native_default_model, "auto")
    app = create_app(llm, ServerSettings(model_name="default"))

    async def ask(client, text, options, enabled):
        answer = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": text}], max_tokens=48, **options,
            extra_body={"return_token_ids": True, "speculative": {"enabled": enabled}, "include_speculation": True},
        )  # fmt: skip
        return answer.choices[0]

    async def run():
        prompts = [[{"role": "user", "content": text}] for text, _ in ASKED]
        params = [SamplingParams(max_tokens=48, **options) for _, options in ASKED]
        python = [result.token_ids for result in await llm.generate(prompts, params)]
        async with openai_of(app) as client:
            alone = [await ask(client, *asked, True) for asked in ASKED]
            together = await asyncio.gather(
                *(ask(client, *asked, enabled) for asked in ASKED for enabled in (True, False))
            )
        await llm.close()
        return python, alone, together

    python, alone, together = asyncio.run(run())
    assert [choice.token_ids for choice in alone] == python
    assert [choice.token_ids for choice in together] == [ids for ids in python for _ in range(2)]
    assert all(choice.speculation["drafted_tokens"] == 0 for choice in together[1::2])
    assert any(choice.speculation["accepted_tokens"] for choice in alone)
