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
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions(),
        "commit": _commit(),
        "machine": dict(machine),
        "model": Path(checkpoint.source).name,
        "model_sha256": getattr(checkpoint, "fingerprint", None),
        "num_parameters": checkpoint.spec.num_parameters,
        "stored_as": getattr(checkpoint, "dtype_name", None),
        "runtime": choice.name,
        "dtype": choice.dtype,
        "kv_dtype": getattr(choice, "kv_dtype", None),
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


def _commit() -> str | None:
    """Of the source tree that foreword was imported from; None where it is no repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
