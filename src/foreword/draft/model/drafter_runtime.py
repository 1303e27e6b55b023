"""The runtime that a drafter's network is built by: the target's, on the same threads, its weights perhaps in fewer bits."""

from foreword.config import DraftConfig
from foreword.errors import ConfigError
from foreword.runtime.base import Runtime


def drafters_runtime(config: DraftConfig, runtime: Runtime, usual: str | None = None) -> Runtime:
    """The target's runtime with weights as `draft_dtype` says, else as `usual` for this kind of network.

    A guess only has to be right often: four bits lose hardly any, and half of the bytes is most of a guess's time.
    `ConfigError` where the runtime knows no such weights.
    """
    from foreword.runtime.native_runtime import NativeRuntime

    if isinstance(runtime, NativeRuntime):
        dtype = config.draft_dtype or usual or runtime.dtype
        return runtime if dtype == runtime.dtype else runtime.with_dtype(dtype)
    if config.draft_dtype is not None:
        raise ConfigError(
            f"draft_dtype is {config.draft_dtype!r}, which the native runtime knows; the target runs on {runtime.name}, and so "
            f"does its drafter, in {runtime.dtype}: leave it out, or run the target with --runtime native"
        )
    return runtime
