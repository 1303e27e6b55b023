"""An agent of `smolagents` against the base address that is given: it calls a tool, then its final answer."""

import json
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool

asked = []


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name.
    """
    asked.append(city)
    return "sun"


model = OpenAIModel(model_id="tiny", api_base=sys.argv[1], api_key="unused", max_tokens=300)
agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=3, verbosity_level=0)
print(json.dumps({"answer": agent.run("Will it rain?"), "asked": asked}))
