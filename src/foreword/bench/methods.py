"""What each way of drafting takes, and where it fits: the part of the method table that no clock measures."""

import json
from pathlib import Path
from typing import Any

from foreword.checkpoint.trained_drafters import trained_drafter
from foreword.draft.drafter_type import NOTHING, DrafterType
from foreword.draft.heads import medusa2 as tuned
from foreword.draft.lookup.ngram_lm import NgramLmDrafter
from foreword.draft.memory.drafter import MemoryDrafter
from foreword.draft.registry import drafter_type
from foreword.engine.llm import LLM

_WEIGHTS = (".safetensors", ".gguf", ".bin")


def method_facts(llm: LLM) -> dict[str, Any]:
    """Of an engine's drafter, ready for JSON. A path does not leave this machine, only the name of what it leads to."""
    names = [member.name for member in llm.config.members]
    parts = _parts(llm)
    folders = [folder for part in parts if (folder := _weights(llm, *part)) is not None]
    needs = list(dict.fromkeys(one.needs for one, _ in parts))
    return {
        "drafter": "+".join(names),
        "num_speculative_tokens": llm.config.num_speculative_tokens,
        "needs": ", ".join(need for need in needs if need != NOTHING or len(needs) == 1),
        "fits": llm.config.members[-1].type.fits,
        "weights": [folder.name for folder in folders],
        "weight_bytes": sum(map(_num_bytes, folders)) or None,
        "training_s": sum(filter(None, map(_training_s, folders))) or None,
    }


def _parts(llm: LLM) -> list[tuple[DrafterType, str | None]]:
    """Each drafter and its path; of `auto`, those that it has found."""
    drafter = llm.engine.parts.drafter
    if isinstance(drafter, MemoryDrafter):
        names = [drafter.name, *[NgramLmDrafter.name] * (drafter.guesser.table is not None)]
        return [(drafter_type(name), None) for name in names]
    if llm.config.method == "auto":
        return [(drafter_type(name), None) for name in drafter.name.split(",")]
    return [(member.type, member.path) for member in llm.config.members]


def _weights(llm: LLM, one: DrafterType, path: str | None) -> Path | None:
    """Where a drafter's own weights lie; None where it has none here."""
    if one.name == tuned.METHOD:  # beside no other model than the one that was tuned with them
        return tuned.heads_folder(path or getattr(llm.model.checkpoint, "path", ""))
    if path is not None:
        return Path(path) if Path(path).exists() else None
    fingerprint = getattr(llm.model.checkpoint, "fingerprint", None)
    return None if fingerprint is None or not one.takes_path else trained_drafter(one.name, fingerprint)


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
