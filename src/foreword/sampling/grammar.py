"""What an answer must look like: JSON schema, regular expression, choice. Plain data; `sampling.walker` follows it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foreword.errors import ConfigError


@dataclass(frozen=True)
class Grammar:
    """What an answer must look like. Make one by `json_schema`, `regex` or `choice`."""

    kind: Literal["json_schema", "regex", "choice"]
    source: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> "Grammar":
        """JSON that fits a schema, given as a mapping or as JSON text."""
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            return cls("json_schema", json.dumps(parsed, ensure_ascii=False))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the JSON schema of a grammar is no JSON: {error}") from error

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Text that a regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> "Grammar":
        """One of some texts."""
        if isinstance(texts, str) or not texts or not all(isinstance(t, str) and t for t in texts):
            raise ConfigError(f"the choices of a grammar are {texts!r}; give texts of at least one character")
        return cls("choice", json.dumps(list(texts), ensure_ascii=False))
