"""Files of prompts: JSON lines in one of three forms, read whole and checked before a model is loaded.

    {"id": "a/1", "category": "chat", "turns": ["first question", "second question"]}     chat template applied
    {"id": "a/2", "prompt": "Once upon a time"}                                           plain text
    {"id": "a/3", "token_ids": [1, 2, 3]}                                                 also called "ids"

A line of any form may have a "reference" beside it: a text that the answer is expected to resemble, a source of
drafts and no part of the prompt. Other keys are ignored. A reference that is no text is ignored, and reported once per file:
data sets keep lists of model answers there. A line without an id is called by its number. Files of Spec-Bench and MT-bench are read as they
are: there the id is called "question_id".
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.cli.output import note
from foreword.errors import ConfigError

FORMS = ("turns", "prompt", "token_ids")
_ALIASES = {"ids": "token_ids"}  # as `bench --write-prompts` and other engines' measurements call them
THE_PROMPT = "the prompt"  # where the prompt of --prompt comes from


@dataclass(frozen=True)
class PromptLine:
    """One prompt and where it comes from. Exactly one of `turns`, `prompt` and `token_ids` is set."""

    where: str  # for messages: "FILE, line 3"
    id: str | int
    category: str | None = None
    turns: tuple[str, ...] | None = None
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    reference: str | None = None  # what the answer is expected to resemble


def read_prompts(path: Path, limit: int | None = None) -> list[PromptLine]:
    """The prompts of a file, at most the first `limit`; `ConfigError` names the file and line that is wrong."""
    check_limit(limit)
    prompts: list[PromptLine] = []
    left_out: list[str] = []
    for number, text in _lines(path):
        if limit is not None and len(prompts) == limit:
            break
        where = f"{path}, line {number}"
        line = _parsed(where, text)
        prompts.append(_prompt(where, number, line))
        if not isinstance(line.get("reference"), str | None):
            left_out.append(f"{where}: reference is {_short(line['reference'])}")
    if not prompts:
        raise ConfigError(f'{path} holds no prompts; it needs JSON lines such as {{"id": 1, "prompt": "Hello"}}')
    if left_out:
        others = f", as in {len(left_out) - 1} more" if len(left_out) > 1 else ""
        note(f"{left_out[0]}, which is not a text and is ignored{others}: drafts are copied from texts only")
    return prompts


def check_limit(limit: int | None) -> None:
    """`ConfigError` where it leaves no prompt."""
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit is {limit}; allowed: 1 or above")


def read_reference(path: Path) -> str:
    """The text of a reference's file."""
    return _text(path, "reference")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank. Only a line feed ends one: JSON strings may hold other line separators."""
    for number, line in enumerate(_text(path, "prompts").split("\n"), start=1):
        if line.strip():
            yield number, line


def _text(path: Path, what: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"the {what} file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the {what} file {path} is not UTF-8 text ({error})") from error


def _parsed(where: str, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{where} is not a prompt: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{where} is not a prompt: its lists are nested too deep") from error
    if not isinstance(line, dict):
        raise ConfigError(f'{where} is not a JSON object; it must look like {{"id": 1, "prompt": "Hello"}}')
    return line


def _prompt(where: str, number: int, line: dict[str, Any]) -> PromptLine:
    line = {_ALIASES.get(key, key): value for key, value in line.items()} if not line.keys() & {*FORMS} else line
    given = [form for form in FORMS if form in line]
    if len(given) != 1:
        raise ConfigError(f"{where} has {' and '.join(given) or 'no prompt'}; give exactly one of {', '.join(FORMS)}")
    name, category = line.get("id", line.get("question_id", number)), line.get("category")
    if not isinstance(name, str | int):
        raise ConfigError(f"{where}: id is {name!r}; allowed: a text or a number")
    if not isinstance(category, str | None):
        raise ConfigError(f"{where}: category is {category!r}; allowed: a text")
    reference = line.get("reference")
    return PromptLine(
        where,
        name,
        category,
        reference=reference if isinstance(reference, str) else None,
        **{given[0]: _checked(where, given[0], line[given[0]])},
    )


def _checked(where: str, form: str, value: Any) -> Any:
    """The prompt itself, of the right type and not empty."""
    if form == "prompt":
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where}: prompt is {_short(value)}; it must be a text that is not empty")
        return value
    kind, words = (str, "texts") if form == "turns" else (int, "whole numbers")
    is_list = isinstance(value, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)
    if not is_list or not value:
        raise ConfigError(f"{where}: {form} is {_short(value)}; it must be a list of at least one, all {words}")
    return tuple(value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
