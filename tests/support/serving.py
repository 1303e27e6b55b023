"""The server around a toy model: asked in the process itself, or over a socket."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx2
import openai
import uvicorn

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.server.app import create_app
from foreword.server.run import config_of, listener_of, url_of
from foreword.server.settings import ServerSettings
from tests.support.toy_decoder import ToyDecoder
from tests.support.toy_llm import END, byte_tokenizer, toy_async_llm

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
BASE = "http://127.0.0.1:8000"
HELLO = [{"role": "user", "content": "hello"}]


def chat_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """Bytes and a few words, with a chat template."""
    plain = byte_tokenizer("hello", " world", "user", "assistant")
    return Tokenizer(plain.backend, {"eos_token": END}, template, "toy")


def toy_app(decoder: ToyDecoder | None = None, drafter="ngram", template: str | None = TEMPLATE, **options):
    """An application; its model is `app.state.served.llm`. Options of `ServerSettings`, and of the model."""
    tokenizer = chat_tokenizer(template)
    llm_options = {name: options.pop(name) for name in ("batch_size", "max_queue", "kv_cache_bytes") if name in options}
    decoder = decoder or ToyDecoder(vocab_size=tokenizer.vocab_size)
    llm = toy_async_llm(decoder, tokenizer, drafter, **llm_options)
    return create_app(llm, ServerSettings(model_name="toy", **options))


def client_of(app, **headers: str) -> httpx2.AsyncClient:
    """Asks in the process itself: no socket, and a streamed answer comes whole."""
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=BASE, headers=headers, timeout=60)


def openai_of(app, **options) -> openai.AsyncOpenAI:
    """The SDK itself."""
    options = {"api_key": "unused", "max_retries": 0} | options
    return openai.AsyncOpenAI(base_url=f"{BASE}/v1", http_client=client_of(app), **options)


def sse_data(text: str) -> list:
    """The events of a streamed answer; the last one is [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@contextlib.contextmanager
def listening(app) -> Iterator[str]:
    """The application on a free port of this machine; its address."""
    config = config_of(app)
    config.timeout_graceful_shutdown = 5
    server = uvicorn.Server(config)
    listener = listener_of(replace(app.state.served.settings, port=0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        yield url_of(app.state.served.settings, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
