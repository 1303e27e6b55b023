"""Arguments of `LLM` as older texts and other libraries spell them, answered with what they are called now."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from foreword.errors import ConfigError

_Args = ParamSpec("_Args")

# name -> what is written instead
_TODAY = {
    "speculative_model": 'speculative_config={{"model": {value!r}, "method": "draft_model"}}',
    "draft_model": 'speculative_config={{"model": {value!r}, "method": "draft_model"}}',
    "assistant_model": 'speculative_config={{"model": {value!r}, "method": "draft_model"}}',
    "speculative_method": 'speculative_config={{"method": {value!r}}}',
    "ngram_prompt_lookup_max": 'speculative_config={{"method": "ngram", "prompt_lookup_max": {value!r}}}',
    "ngram_prompt_lookup_min": 'speculative_config={{"method": "ngram", "prompt_lookup_min": {value!r}}}',
    "num_assistant_tokens": 'speculative_config={{"num_speculative_tokens": {value!r}}}',
    "prompt_lookup_num_tokens": 'speculative_config={{"method": "ngram", "num_speculative_tokens": {value!r}}}',
}


def answers_older_names(init: Callable[_Args, None]) -> Callable[_Args, None]:
    """An `__init__` that says what an argument of an older name is called today, by `ConfigError`."""

    @wraps(init)
    def checked(*args: _Args.args, **kwargs: _Args.kwargs) -> None:
        for name, value in kwargs.items():
            if name in _TODAY:
                raise ConfigError(
                    f"{name} is an older name; today it is {_TODAY[name].format(value=value)}, here and in vLLM; "
                    f"'foreword vllm' prints vLLM's whole call"
                )
        init(*args, **kwargs)

    return checked
