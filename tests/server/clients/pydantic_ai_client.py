"""Agents of `pydantic-ai` against the base address that is given, over chat and over responses: a tool is called, then answered."""

import json
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=sys.argv[1], api_key="unused")


def run(kind) -> dict:
    asked = []
    agent = Agent(kind("tiny", provider=PROVIDER), instructions="Be short.")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sun"

    result = agent.run_sync("Will it rain?", model_settings={"max_tokens": 300})
    return {"asked": asked, "answer": result.output, "requests": result.usage.requests}


print(json.dumps({"chat": run(OpenAIChatModel), "responses": run(OpenAIResponsesModel)}))
