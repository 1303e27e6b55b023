"""What was run, and on what, so that a result can be judged and taken again. No path of the machine is in it."""

import datetime
import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreword.target.load_model import LoadedModel

_PACKAGES = ("foreword", "foreword-kernels", "torch", "numpy", "tokenizers", "transformers")


def provenance(model: "LoadedModel", prompt_files: Sequence[Path], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Ready for JSON. `machine` is what the command line found out about it."""
    checkpoint, choice = model.checkpoint, model.choice
    commit, is_dirty = source_commit()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "commit": commit,
        "is_dirty": is_dirty,
        "machine": dict(machine),
        "model": Path(checkpoint.source).name,
        "model_sha256": getattr(checkpoint, "fingerprint", None),
        "num_parameters": checkpoint.spec.num_parameters,
        "stored_as": getattr(checkpoint, "dtype_name", None),
        "runtime": choice.name,
        "dtype": choice.dtype,
        "kv_dtype": getattr(choice, "kv_dtype", None),
        "isa": getattr(choice, "isa", None),
        "device": choice.device,
        "prompt_files": [
            {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in prompt_files
        ],
    }


def versions() -> dict[str, str]:
    """Of what computes, where it is installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def source_commit(folder: Path = Path(__file__).parent) -> tuple[str | None, bool | None]:
    """Of the source tree that foreword was imported from, and whether tracked files differ from it; None without one."""
    commit, status = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--untracked-files=no")
    return (None, None) if not commit or status is None else (commit[:10], bool(status))


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it is missing or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
