"""Grammars that constrain an answer: JSON schema, regular expression, choice, Lark. Plain data; `sampling.grammar_matcher` follows it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foreword.errors import ConfigError
from foreword.text_checks import check_unicode


@dataclass(frozen=True)
class Grammar:
    """A constraint on an answer. Create one with `json_schema`, `regex`, `choice` or `lark`."""

    kind: Literal["json_schema", "regex", "choice", "lark"]
    source: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> "Grammar":
        """JSON that fits a schema, given as a mapping or as JSON text."""
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            source = json.dumps(parsed, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the JSON schema of a grammar is not JSON: {error}") from error
        check_unicode("the JSON schema of a grammar", source)
        return cls("json_schema", source)

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Text that the regular expression matches completely."""
        if not isinstance(pattern, str):
            raise ConfigError(f"the regular expression of a grammar is {pattern!r}; allowed: a text")
        check_unicode("the regular expression of a grammar", pattern)
        return cls("regex", pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> "Grammar":
        """One of some texts."""
        if isinstance(texts, str) or not texts or not all(isinstance(t, str) and t for t in texts):
            raise ConfigError(f"the choices of a grammar are {texts!r}; give texts of at least one character")
        for text in texts:
            check_unicode("a choice of a grammar", text)
        return cls("choice", json.dumps(list(texts), ensure_ascii=False))

    @classmethod
    def lark(cls, text: str) -> "Grammar":
        """Text that a context-free grammar derives, in the dialect of Lark that llguidance reads; `start` is its first rule."""
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"the Lark text of a grammar is {text!r}; allowed: a text with the rule 'start'")
        check_unicode("the Lark text of a grammar", text)
        return cls("lark", text)
