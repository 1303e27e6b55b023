"""What a benchmark leaves behind: every raw measurement, and what is needed to take it again.

One JSON file. `runs` has an entry for each time that a group of prompts went through a cell; figures are made of them
in `summary` and nowhere else. A file without the last runs is a benchmark that was stopped, and can go on.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foreword.bench.cells import Cell, Mode
from foreword.bench.reliability import Bins
from foreword.errors import ConfigError
from foreword.files import write_whole

FORMAT, VERSION = "foreword-bench", 1


@dataclass
class Answer:
    """What was said to one prompt, and how."""

    prompt: int  # index into the prompts
    sha256: str  # of its token ids
    new_tokens: int
    finish_reason: str
    steps: int
    drafted_tokens: int
    accepted_tokens: int
    drafted_at_depth: list[int]
    accepted_at_depth: list[int]
    token_ids: list[int] | None = None  # of the answers compared with, and of those that differ from them
    near_ties: list[str] = field(default_factory=list)  # differences that rounding explains
    fault: str | None = None  # the difference that nothing explains


@dataclass
class Run:
    """One group of prompts through one cell, once."""

    cell: int
    repeat: int
    group: int
    prefill_s: float
    decode_s: float
    draft_s: float  # of decode_s
    target_s: float  # of decode_s
    decode_tokens: int
    num_passes: int
    num_nodes: int
    answers: list[Answer]
    reliability: Bins = field(default_factory=list)  # what became of drafted tokens; none in files of earlier versions

    @property
    def key(self) -> tuple[int, int, int]:
        """Which run this is."""
        return self.cell, self.repeat, self.group


@dataclass(frozen=True)
class PromptFacts:
    """What is kept of a prompt: enough to know it again, not its text."""

    id: str
    category: str
    prompt_tokens: int
    sha256: str


@dataclass
class BenchResult:
    """A benchmark, as far as it has come."""

    settings: dict[str, Any]
    provenance: dict[str, Any]
    prompts: list[PromptFacts]
    cells: list[Cell]
    runs: list[Run] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)  # cells that cannot be run, with the reason
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)  # facts of each drafter, by label
    pass_cost: dict[str, Any] | None = None
    peers: list[dict[str, Any]] = field(default_factory=list)
    is_complete: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal where a stopped benchmark goes on."""
        return {
            "settings": self.settings,
            "model": self.provenance.get("model"),
            "model_sha256": self.provenance.get("model_sha256"),
            "prompts": [(prompt.id, prompt.category, prompt.sha256) for prompt in self.prompts],
            "cells": [cell.key for cell in self.cells],
        }

    def save(self, path: Path, **more: Any) -> None:
        """Write it whole; `more` are derived parts such as the summary."""
        write_whole(path, json.dumps(self.as_json() | more, indent=None, separators=(",", ":")) + "\n")

    def as_json(self) -> dict[str, Any]:
        """Ready for a file."""
        data = asdict(self)
        data["refused"] = {str(cell): reason for cell, reason in self.refused.items()}
        return {"format": FORMAT, "version": VERSION, **data}


def load_result(path: Path) -> BenchResult:
    """Read a result; `ConfigError` says what is wrong with the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the result {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the result {path} is not JSON: {error}") from error
    if not isinstance(data, Mapping) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ConfigError(f"{path} is no result of foreword bench, version {VERSION}; give a file that --json wrote")
    try:
        return BenchResult(
            settings=data["settings"],
            provenance=data["provenance"],
            prompts=[PromptFacts(**prompt) for prompt in data["prompts"]],
            cells=[Cell(**{**cell, "mode": Mode(**cell["mode"])}) for cell in data["cells"]],
            runs=[Run(**{**run, "answers": [Answer(**answer) for answer in run["answers"]]}) for run in data["runs"]],
            refused={int(cell): reason for cell, reason in data["refused"].items()},
            methods=data["methods"],
            pass_cost=data["pass_cost"],
            peers=data["peers"],
            is_complete=data["is_complete"],
        )
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path} is a damaged result: {error!r}; measure again") from error


def check_same(kept: BenchResult, wanted: BenchResult, path: Path) -> None:
    """Raise `ConfigError` where a stopped benchmark is not the one that is asked for; it names what differs."""
    for part, value in wanted.identity.items():
        before = kept.identity[part]
        if before == value:
            continue
        if isinstance(value, dict):
            names = [name for name in value if before.get(name) != value[name]] or sorted(before.keys() - value.keys())
            part = ", ".join(f"{name} ({before.get(name)!r}, now {value.get(name)!r})" for name in names)
        raise ConfigError(
            f"{path} was measured with other {part}; repeat those options, or name another file in --json"
        )
