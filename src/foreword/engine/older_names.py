"""Arguments of `LLM` as older texts and other libraries spell them, answered with what they are called now."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec

from foreword.errors import ConfigError

_Args = ParamSpec("_Args")

# name -> (its key in speculative_config, the method that goes with it)
_TODAY: dict[str, tuple[str, str | None]] = {
    "speculative_model": ("model", "draft_model"),
    "draft_model": ("model", "draft_model"),
    "assistant_model": ("model", "draft_model"),
    "speculative_method": ("method", None),
    "ngram_prompt_lookup_max": ("prompt_lookup_max", "ngram"),
    "ngram_prompt_lookup_min": ("prompt_lookup_min", "ngram"),
    "num_assistant_tokens": ("num_speculative_tokens", None),
    "prompt_lookup_num_tokens": ("num_speculative_tokens", "ngram"),
}
_KEPT = "num_speculative_tokens"  # an argument here, and in vLLM a key of speculative_config alone


def refuse_older_names(arguments: Mapping[str, Any]) -> None:
    """`ConfigError` that says what arguments of older names are called today, all of them in one."""
    older = [name for name in arguments if name in _TODAY]
    if not older:
        return
    config: dict[str, Any] = {}
    for name in older:
        key, method = _TODAY[name]
        if method is not None:
            config.setdefault("method", method)
        config[key] = arguments[name]
    if config.get("model") in ("ngram", "[ngram]"):  # how prompt lookup was once named
        del config["model"]
        config["method"] = "ngram"
    if _KEPT in arguments:
        config[_KEPT] = arguments[_KEPT]
    raise ConfigError(
        f"{', '.join(older)}: an older way to say it; today it is speculative_config={config!r}, here and in vLLM; "
        f"'foreword vllm' prints vLLM's whole call"
    )


def answers_older_names(init: Callable[_Args, None]) -> Callable[_Args, None]:
    """An `__init__` that answers arguments of older names (`refuse_older_names`)."""

    @wraps(init)
    def checked(*args: _Args.args, **kwargs: _Args.kwargs) -> None:
        refuse_older_names(kwargs)
        init(*args, **kwargs)

    return checked
