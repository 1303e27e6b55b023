"""What each way of drafting takes, and where it fits: the part of the method table that no clock measures."""

import json
from pathlib import Path
from typing import Any

from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.draft.heads import medusa2 as tuned
from foreword.engine.llm import LLM

# What a method needs besides the target, and the text or machine that it is good for.
NEEDS_AND_FITS: dict[str, tuple[str, str]] = {
    "none": ("nothing", "the baseline"),
    "auto": ("nothing", "when in doubt: drafts only where it pays"),
    "ngram": ("nothing", "edits, code, summaries: text that copies"),
    "suffix": ("nothing", "edits, code, agents: text that repeats itself"),
    "recycling": ("nothing", "any text; learns as it goes"),
    "ngram_lm": ("a table, counted in minutes", "one model, any text; beside suffix"),
    "lookahead": ("nothing", "machines with arithmetic to spare"),
    "layerskip": ("nothing", "models trained to exit early"),
    "synthetic": ("the answer itself", "measuring an engine, not drafting"),
    "draft_model": ("a smaller model", "large targets with a small sibling"),
    "medusa": ("trained heads", "one model served for long"),
    "medusa2": ("a tuned target", "is another target: other words"),
    "eagle": ("a trained head", "one model served for long"),
    "eagle2": ("a trained head", "one model served for long"),
    "eagle3": ("a trained head", "one model served for long; any text"),
}
_UNKNOWN = ("not stated", "not stated")
_WEIGHTS = (".safetensors", ".gguf", ".bin")


def method_facts(llm: LLM) -> dict[str, Any]:
    """Of an engine's drafter, ready for JSON. A path does not leave this machine, only the name of what it leads to."""
    names = [part.partition("=")[0] for part in llm.config.method.split(",")]
    parts = _parts(llm)
    folders = [folder for folder in (_weights(llm, part) for part in parts) if folder is not None]
    needs = list(dict.fromkeys(NEEDS_AND_FITS.get(name, _UNKNOWN)[0] for name, _ in parts))
    return {
        "drafter": "+".join(names),
        "num_speculative_tokens": llm.config.num_speculative_tokens,
        "needs": ", ".join(need for need in needs if need != "nothing" or len(needs) == 1),
        "fits": NEEDS_AND_FITS.get(names[-1], _UNKNOWN)[1],
        "weights": [folder.name for folder in folders],
        "weight_bytes": sum(map(_num_bytes, folders)) or None,
        "training_s": sum(filter(None, map(_training_s, folders))) or None,
    }


def _parts(llm: LLM) -> list[tuple[str, str | None]]:
    """(name, path) of each drafter; of `auto`, those that it has found."""
    if llm.config.method == "auto":
        return [(name, None) for name in llm.engine.parts.drafter.name.split(",")]
    if "," not in llm.config.method:
        return [(llm.config.method, llm.config.model)]
    split = [part.partition("=") for part in llm.config.method.split(",")]
    return [(name, path or None) for name, _, path in split]


def _weights(llm: LLM, part: tuple[str, str | None]) -> Path | None:
    """Where a drafter's own weights lie; None where it has none here."""
    name, path = part
    if name == tuned.METHOD:  # beside no other model than the one that was tuned with them
        return tuned.heads_folder(path or getattr(llm.model.checkpoint, "path", ""))
    if path is not None:
        return Path(path) if Path(path).exists() else None
    fingerprint = getattr(llm.model.checkpoint, "fingerprint", None)
    needs_none = NEEDS_AND_FITS.get(name, _UNKNOWN)[0] == "nothing"
    return None if fingerprint is None or needs_none else trained_drafter(name, fingerprint)


def _num_bytes(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.suffix in _WEIGHTS]
    return sum(file.stat().st_size for file in files)


def _training_s(path: Path) -> float | None:
    """What its card says."""
    try:
        seconds = json.loads((path / "config.json").read_text())["foreword"]["training_s"]
        return float(seconds)
    except (OSError, ValueError, KeyError, TypeError):
        return None
