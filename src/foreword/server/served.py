"""What the routes work with: the model, its settings, and the beginnings of every answer."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.engine.async_llm import AsyncLLM
from foreword.server.requests import Limits
from foreword.server.settings import ServerSettings


@dataclass(frozen=True)
class Served:
    """One model behind one address."""

    llm: AsyncLLM
    settings: ServerSettings
    started_s: float = field(default_factory=time.time)  # since the epoch

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self.llm.tokenizer

    @property
    def limits(self) -> Limits:
        """What bounds a request."""
        return Limits(self.settings, self.llm.model.checkpoint.spec.context_len)

    def head(self, prefix: str, kind: str) -> dict[str, Any]:
        """What all objects of one answer begin with."""
        return {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.settings.model_name,
        }


def _of_app(request: Request) -> Served:
    return request.app.state.served


Here = Annotated[Served, Depends(_of_app)]
