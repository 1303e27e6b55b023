"""Which runtime computes, with which numbers, and why."""

import importlib.util
import os
from dataclasses import dataclass, replace
from pathlib import Path

from foreword.config import DTYPES, KV_DTYPES, RUNTIMES, TORCH_DTYPES
from foreword.errors import ConfigError, KernelError, UnknownNameError
from foreword.runtime.base import Runtime

NATIVE_DTYPES = ("int8", "int4")


@dataclass(frozen=True)
class RuntimeChoice:
    """A resolved choice and its reason."""

    name: str  # "torch" or "native"
    dtype: str
    device: str
    reason: str
    kv_dtype: str = ""  # of cached keys and values; torch keeps them in its own dtype
    isa: str = ""  # the instruction set of the native runtime
    shares_weights: bool = False  # native: with all processes that have the same packed weights


def choose_runtime(
    runtime: str = "auto", dtype: str = "auto", device: str = "auto", kv_dtype: str = "auto", isa: str = "auto"
) -> RuntimeChoice:
    """Resolve every "auto". `ConfigError` for names that do not exist or do not go together."""
    names = (("runtime", runtime, RUNTIMES), ("dtype", dtype, DTYPES), ("kv_dtype", kv_dtype, KV_DTYPES))
    for kind, name, allowed in names:
        if not isinstance(name, str) or name not in allowed:
            raise UnknownNameError(kind, name, allowed)
    if not isinstance(device, str):
        raise ConfigError(f"device is {device!r}; allowed: auto, cpu, cuda, cuda:1 and so on")
    choice = _choose(runtime, dtype, device)
    if choice.name == "native":
        return replace(choice, kv_dtype="bfloat16" if kv_dtype == "auto" else kv_dtype, isa=_checked_isa(isa))
    if isa != "auto":
        raise ConfigError(
            f"isa is {isa}, but the torch runtime takes the instructions it finds; allowed: auto, or the native runtime"
        )
    if kv_dtype not in ("auto", choice.dtype):
        raise ConfigError(
            f"kv_dtype is {kv_dtype}, but the torch runtime keeps keys and values in the dtype it computes in, "
            f"here {choice.dtype}; allowed: auto, {choice.dtype}, or the native runtime"
        )
    return replace(choice, kv_dtype=choice.dtype)


def _checked_isa(isa: str) -> str:
    """The instruction set of this name, the fastest one for "auto"; `UnknownNameError` where it does not run here."""
    import foreword_kernels  # pyright: ignore[reportMissingImports]

    allowed = foreword_kernels.available_isas()
    if isa not in ("auto", *allowed):
        raise UnknownNameError("isa", isa, ("auto", *allowed))
    return allowed[0] if isa == "auto" else isa


def _choose(runtime: str, dtype: str, device: str) -> RuntimeChoice:
    if runtime == "native" and dtype in TORCH_DTYPES:
        raise ConfigError(f"the native runtime does not compute in {dtype}; allowed: auto, {', '.join(NATIVE_DTYPES)}")
    if runtime == "torch" and dtype in NATIVE_DTYPES:
        raise ConfigError(f"the torch runtime does not compute in {dtype}; allowed: auto, {', '.join(TORCH_DTYPES)}")
    if (runtime == "native" or dtype in NATIVE_DTYPES) and device not in ("auto", "cpu"):
        raise ConfigError(
            f"the native runtime computes on the CPU, not on {device}; allowed: auto, cpu, or runtime torch"
        )
    if device == "auto":
        device = _best_device()
    missing = native_problem()
    if runtime == "native" or dtype in NATIVE_DTYPES:
        if missing:
            raise KernelError(f"the native runtime is not available: {missing}; use --runtime torch")
        return RuntimeChoice("native", "int8" if dtype == "auto" else dtype, "cpu", "as requested")
    if runtime == "torch" or dtype in TORCH_DTYPES or device != "cpu" or missing:
        return RuntimeChoice(
            "torch", _torch_dtype(dtype, device), device, _torch_reason(runtime, dtype, device, missing)
        )
    return RuntimeChoice("native", "int8", "cpu", "fastest on a CPU, and bit for bit the same at any width")


_MANY_THREADS = 64  # allowed on any machine, however slow more threads than cores are


def check_threads(threads: int | None) -> None:
    """`ConfigError` for a number of threads that cannot be."""
    if threads is None:
        return
    most = max(_MANY_THREADS, os.cpu_count() or 1)
    if type(threads) is not int or threads < 1:
        raise ConfigError(f"threads is {threads!r}; allowed: a whole number, 1 or above")
    if threads > most:
        raise ConfigError(f"threads is {threads}; allowed: at most {most}, and best no more than physical cores")


def make_runtime(choice: RuntimeChoice, threads: int | None = None, cache_dir: Path | None = None) -> Runtime:
    """The runtime that was chosen. `threads` defaults to the physical cores, `cache_dir` to the user's cache folder."""
    check_threads(threads)
    if choice.name == "native":
        from foreword.runtime.native_runtime import NativeRuntime

        isa, shares = choice.isa or "auto", choice.shares_weights
        return NativeRuntime(choice.dtype, threads, cache_dir, isa, choice.kv_dtype, share_weights=shares)
    import torch

    from foreword.runtime.torch_runtime import TorchRuntime

    if threads is not None:
        torch.set_num_threads(threads)
    return TorchRuntime(device=choice.device, dtype=choice.dtype)


def native_problem() -> str | None:
    """Why the native runtime cannot be used here; None if it can."""
    if importlib.util.find_spec("foreword_kernels") is None:
        return "the package foreword-kernels is not installed (it needs a C++ compiler to build)"
    try:
        import foreword_kernels  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        return f"foreword_kernels does not load: {error}"
    return None


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _torch_dtype(dtype: str, device: str) -> str:
    if dtype != "auto":
        return dtype
    return "float32" if device == "cpu" else "bfloat16"


def _torch_reason(runtime: str, dtype: str, device: str, missing: str | None) -> str:
    if runtime == "torch" or dtype in TORCH_DTYPES:
        return "as requested"
    return f"device is {device}" if device != "cpu" else f"native is not available: {missing}"
