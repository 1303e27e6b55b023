"""Grammars that constrain an answer: JSON schema, regular expression, choice, Lark. Plain data; `sampling.grammar_matcher` follows it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foreword.errors import ConfigError
from foreword.text_checks import check_unicode

_LONGEST_REASON = 240  # characters


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

    def problem(self) -> str | None:
        """What makes it unusable, found without a vocabulary; None where nothing does, or llguidance is not there to tell."""
        try:
            from llguidance import LLMatcher
        except ImportError:
            return None
        found = LLMatcher.validate_grammar(self.for_matcher(LLMatcher), None)
        return None if not found or found.startswith("WARNING") else one_line(found)

    def for_matcher(self, matcher: Any) -> str:
        """As llguidance's matcher class reads it."""
        if self.kind == "json_schema":
            return matcher.grammar_from_json_schema(self.source)
        if self.kind == "regex":
            return matcher.grammar_from_regex(self.source)
        if self.kind == "lark":
            return matcher.grammar_from_lark(self.source)
        texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(self.source))
        return matcher.grammar_from_lark("start: " + " | ".join(texts))


def one_line(problem: str) -> str:
    """Llguidance's reason in one line, without its copy of the grammar and of its own state."""
    reason = problem.partition("\n<state>")[0].strip()
    parse_error = reason.rpartition("\nerror: ")[2].partition("\n")[0]  # what a regex is refused with ends in this
    reason = parse_error if "regex parse error" in reason else " ".join(reason.split())
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 3] + "..."
