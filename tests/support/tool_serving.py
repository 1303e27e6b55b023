"""A server whose model calls tools, on a port of this machine. What it answers can be set."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from foreword.engine.async_llm import AsyncLLM
from foreword.sampling.grammar import Grammar
from foreword.sampling.params import SamplingParams
from foreword.server.app import create_app
from foreword.server.settings import ServerSettings
from tests.support.serving import listening
from tests.support.tool_models import SPECIAL, load_tool_model

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "in_days": {"type": "boolean"}},
    "required": ["city"],
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}


class ScriptedLLM(AsyncLLM):
    """A model that says the texts of `script` one after the other, the last one for ever, where nothing else holds it."""

    script: tuple[str, ...] = ()
    overrides_grammars = False  # also where something does

    def _prepare(self, prompts, params=None, *args, **kwargs):
        if self.script and isinstance(params, SamplingParams) and (self.overrides_grammars or params.grammar is None):
            params = replace(params, grammar=self._grammar_of(self.script[0]))
            self.script = self.script[1:] or self.script
        return super()._prepare(prompts, params, *args, **kwargs)

    def _grammar_of(self, text: str) -> Grammar:
        parts, rest = [], text
        while rest:
            special = next((tag for tag in SPECIAL if rest.startswith(tag)), None)
            if special is not None:
                parts.append(f"<[{self.tokenizer.token_id(special)}]>")
                rest = rest.removeprefix(special)
                continue
            end = min((at for tag in SPECIAL if (at := rest.find(tag)) > 0), default=len(rest))
            parts.append(json.dumps(rest[:end]))
            rest = rest[end:]
        return Grammar.lark("start: " + " ".join(parts))


@dataclass
class ToolServer:
    """One that listens."""

    url: str  # with /v1
    llm: ScriptedLLM

    @contextlib.contextmanager
    def saying(self, *texts: str) -> Iterator[None]:
        """The next answers are these texts, where nothing else holds them."""
        self.llm.script = texts
        try:
            yield
        finally:
            self.llm.script = ()


@contextlib.contextmanager
def tool_server(folder: Path, template: str = "hermes", context_len: int = 2048, **settings) -> Iterator[ToolServer]:
    """The server of a tiny model, in a thread."""
    llm = ScriptedLLM(load_tool_model(folder, template, context_len), "ngram", batch_size=8)
    with listening(create_app(llm, ServerSettings(model_name="tiny", **settings))) as address:
        yield ToolServer(f"{address}/v1", llm)
