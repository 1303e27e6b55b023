"""The runtime that a drafter's network is built by: the target's, on the same threads, its weights perhaps in fewer bits."""

from foreword.errors import ConfigError
from foreword.runtime.base import Runtime


def drafters_runtime(draft_dtype: str | None, runtime: Runtime, usual: str | None = None) -> Runtime:
    """The target's runtime with weights of `draft_dtype`, where None as `usual` for this kind of network.

    A guess only has to be right often: four bits lose hardly any, and half of the bytes is most of a guess's time.
    `ConfigError` where the runtime knows no such weights.
    """
    from foreword.runtime.native_runtime import NativeRuntime

    if isinstance(runtime, NativeRuntime):
        dtype = draft_dtype or usual or runtime.dtype
        return runtime if dtype == runtime.dtype else runtime.with_dtype(dtype)
    if draft_dtype is not None:
        raise ConfigError(
            f"draft_dtype is {draft_dtype!r}, which the native runtime knows; the target runs on {runtime.name}, and so "
            f"does its drafter, in {runtime.dtype}: leave it out, or run the target with --runtime native"
        )
    return runtime
