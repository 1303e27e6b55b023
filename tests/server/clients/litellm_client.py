"""`litellm` against the base address that is given: prints what it read as JSON."""

import json
import sys

import litellm

MESSAGES = [{"role": "user", "content": "Will it rain?"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
SHARED = {"model": "openai/tiny", "messages": MESSAGES, "api_base": sys.argv[1], "api_key": "unused", "max_tokens": 200}

whole = litellm.completion(**SHARED)
chunks = list(litellm.completion(**SHARED, stream=True))
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
calls = litellm.completion(**SHARED, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
chunks = list(
    litellm.completion(**SHARED, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, stream=True)
)
built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
response = litellm.responses(
    model="openai/tiny", input="Will it rain?", api_base=sys.argv[1], api_key="unused", max_output_tokens=200
)
try:
    litellm.completion(**(SHARED | {"model": "openai/another"}))
    refused = None
except litellm.exceptions.NotFoundError:
    refused = 404
found = {
    "whole": whole.choices[0].message.content,
    "streamed": streamed,
    "call": json.loads(calls.choices[0].message.tool_calls[0].function.arguments),
    "streamedCall": json.loads(built.choices[0].message.tool_calls[0].function.arguments),
    "response": response.output[0].content[0].text,
    "refused": refused,
}
print(json.dumps(found))
