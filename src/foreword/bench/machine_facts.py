"""What `foreword doctor` finds out about this machine."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foreword.bench.provenance import versions
from foreword.cache_folder import cache_folder
from foreword.checkpoint.default_model import DEFAULT_MODEL, default_model_path
from foreword.checkpoint.trained_drafters import trained_drafter_names
from foreword.config import STEADY_METHOD
from foreword.draft.draft_config import DraftConfig
from foreword.engine.kv_budget import default_budget
from foreword.runtime.cpu_cores import allowed_cpus, find_cores
from foreword.runtime.native_load import available_bytes
from foreword.runtime.native_threads import cpu_quota
from foreword.runtime.select import choose_runtime, native_problem

_COMPILERS = ("c++", "g++", "clang++", "cl")
# How the kernel's list of processor features names what speeds up small integers and bfloat16.
_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX",
    "asimddp": "ARM dot product",
    "i8mm": "ARM int8 matrix",
}
_LEAST_FREE_BYTES = 2e9
_DRAFTER_WHY = "copies from the text so far, or proposes what the model often generates, where that is faster by this machine's measured times"
_DRAFTER_OTHERWISE = f"{STEADY_METHOD} where --verifier is not match: the output then depends on the drafts"
_NATIVE_COST = (
    "without it the torch runtime is used: in float32 it reads 4 bytes per weight where native reads 1, and its last "
    "bits depend on the width of a pass, so that equality holds except for near-ties"
)


def machine_facts() -> dict[str, Any]:
    """Everything that was found, ready for JSON."""
    cache = cache_folder()
    problem = native_problem()
    choice = choose_runtime()
    facts: dict[str, Any] = {
        "foreword": versions().get("foreword", "0.0.0"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": {"name": _cpu_name(), "logical_cores": os.cpu_count(), "features": _cpu_features(), **_cores()},
        "torch": _torch(),
        "native": {"is_available": problem is None, "problem": problem, "cost": _NATIVE_COST if problem else None},
        "choice": {"runtime": choice.name, "dtype": choice.dtype, "device": choice.device, "reason": choice.reason},
        "drafter": {"default": DraftConfig.method, "why": _DRAFTER_WHY, "otherwise": _DRAFTER_OTHERWISE},
        "kv_cache": {"budget_bytes": default_budget(available_bytes()).total_bytes},
        "compilers": _compilers(),
        "cache": {"folder": str(cache), "free_bytes": _free_bytes(cache)},
        "default_model": {"file": DEFAULT_MODEL.file_name, "is_cached": default_model_path(cache).is_file()},
        "trained_drafters": trained_drafter_names(),
    }
    return facts | {"advice": _advice(facts)}


def _advice(facts: dict[str, Any]) -> list[str]:
    """What to do, most useful first."""
    advice = []
    if facts["native"]["problem"]:
        fix = "build it with 'make install' in the source folder, or 'pip install ./kernels'"
        if not facts["compilers"]:
            fix = f"install a C++ compiler (g++ or clang++), then {fix}"
        advice.append(f"the native runtime is not available: {_NATIVE_COST}; {fix}")
    if not facts["trained_drafters"]:
        advice.append(
            "no trained drafter is installed, so auto drafts with suffix alone; 'pip install foreword-drafters' brings those of "
            "the default model, 'foreword train ngram_lm' makes one for yours"
        )
    if facts["cache"]["free_bytes"] < _LEAST_FREE_BYTES:
        free = facts["cache"]["free_bytes"] / 1e9
        advice.append(
            f"only {free:.1f} GB are free in {facts['cache']['folder']}: models and converted weights go there; free "
            f"some space, or name another folder in FOREWORD_CACHE"
        )
    if not facts["default_model"]["is_cached"]:
        advice.append("the default model is fetched at the first use; 'foreword inspect' fetches it now")
    return advice


def _torch() -> dict[str, Any]:
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(num_gpus)],
    }


def _cores() -> dict[str, Any]:
    """Those that this process may use."""
    return {"cores": [asdict(core) for core in find_cores(allowed_cpus())], "quota_cores": cpu_quota()}


def _cpu_name() -> str:
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_features() -> list[str]:
    """Instruction sets that matter here; empty where the system does not tell."""
    for line in _cpuinfo():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(value.split())
            return [label for flag, label in _FEATURES.items() if flag in flags]
    return []


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def _compilers() -> dict[str, str]:
    """C++ compilers on the path: command -> first line of its version."""
    found: dict[str, str] = {}
    seen = set()
    for command in _COMPILERS:
        path = shutil.which(command)
        if path and Path(path).resolve() not in seen:
            seen.add(Path(path).resolve())
            found[command] = _first_line([path] if sys.platform == "win32" else [path, "--version"]) or command
    return found


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def _free_bytes(folder: Path) -> int:
    """Free space where the folder is or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
