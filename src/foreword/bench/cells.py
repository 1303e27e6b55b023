"""What is compared: cells. A cell is a drafter and a rule in a mode; a mode is a temperature and a batch size.

    ngram               the drafter as it comes
    eagle3=PATH         with weights
    suffix@16           with at most 16 drafted tokens per step
    suffix+eagle3       several, the first worthwhile one drafts (commas separate cells)
    profile             what `foreword tune` wrote to the file in --profile
    synthetic=0.7       drafts the plain answer, each token right with chance 0.7

Every mode has a baseline: no drafter, rule match.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foreword.draft.draft_config import draft_config
from foreword.draft.names import split_list
from foreword.draft.registry import check_drafter_name, drafter_names
from foreword.errors import ConfigError
from foreword.verify.base import Verifier, make_verifier

# What may be asked of the tokens: those of plain decoding; only their probabilities; nothing.
Promise = Literal["tokens", "law", "nothing"]
PLAIN, MATCH, PROFILE = "none", "match", "profile"
_SIZE = re.compile(r"^(.+)@(\d+)$")


@dataclass(frozen=True)
class Mode:
    """How tokens are sampled and how many prompts share a batch."""

    temperature: float
    batch_size: int

    @property
    def name(self) -> str:
        """For people."""
        drawing = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        return drawing if self.batch_size == 1 else f"{drawing}, {self.batch_size} at a time"


@dataclass(frozen=True)
class Cell:
    """One way of running the prompts."""

    drafter: str  # as LLM takes it
    verifier: str
    mode: Mode
    num_speculative_tokens: int | None = None
    promise: Promise = "tokens"

    @property
    def is_baseline(self) -> bool:
        """Plain decoding: what the others of its mode are compared with."""
        return self.drafter == PLAIN and self.verifier == MATCH

    @property
    def label(self) -> str:
        """Short, without the folder of a path."""
        parts = [_bare(part) for part in split_list(self.drafter)]
        size = f"@{self.num_speculative_tokens}" if self.num_speculative_tokens is not None else ""
        rule = "" if self.verifier == MATCH else f" · {self.verifier}"
        return "+".join(parts) + size + rule

    @property
    def key(self) -> str:
        """Unique in a run."""
        return f"{self.label} | {self.mode.name}"


def make_cells(
    drafters: Sequence[str], verifiers: Sequence[str], temperatures: Sequence[float], batch_sizes: Sequence[int]
) -> list[Cell]:
    """All of them, each mode's baseline first. `ConfigError` for unknown names, and for two cells of the same name.

    The profile, where there is one, is named `PROFILE`.
    """
    cells: list[Cell] = []
    rules = {name: make_verifier(name) for name in verifiers}
    chosen = [_parse(text) for text in drafters]
    for mode in (Mode(temperature, batch_size) for batch_size in batch_sizes for temperature in temperatures):
        cells.append(Cell(PLAIN, MATCH, mode))
        for name, rule in rules.items():
            for drafter, size in chosen:
                if drafter != PLAIN:
                    cells.append(Cell(drafter, name, mode, size, _promise(rule, mode)))
    keys = [cell.key for cell in cells]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(f"{twice[0]!r} is named twice: give each drafter, verifier, temperature and batch size once")
    return cells


def _parse(text: str) -> tuple[str, int | None]:
    """A drafter as LLM takes it (or the profile), and its most drafted tokens."""
    if text == PROFILE:
        return PROFILE, None
    found = _SIZE.match(text)
    name, size = (found[1], int(found[2])) if found else (text, None)
    parts = re.split(
        rf"\+(?=(?:{'|'.join(drafter_names())})(?:[=+]|$))", name
    )  # not every plus sign: paths may hold one
    for part in parts:
        check_drafter_name(part.partition("=")[0])
    drafter = ",".join(parts)
    draft_config(drafter)  # refused now, not once a model is loaded
    return drafter, size


def _promise(rule: Verifier, mode: Mode) -> Promise:
    if not rule.is_lossless:
        return "nothing"
    return "tokens" if rule.name == MATCH or mode.temperature == 0 else "law"


def _bare(part: str) -> str:
    """A drafter's name without a path; what synthetic is set to stays, and medusa2 says that all is of a tuned target."""
    name, _, path = part.partition("=")
    if name == "medusa2":
        return "medusa2 (tuned target)"
    return part if name == "synthetic" and path else name
