"""How one request is drafted for: what changes the speed of its answer, never its words."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foreword.config import MAX_SPECULATIVE_TOKENS
from foreword.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DraftingParams:
    """Options of one request, beside its `SamplingParams`. Wrong values raise `ConfigError`.

    Args:
        enabled: False decodes this request plainly, whatever drafter the model has.
        num_speculative_tokens: most drafted tokens a step for this request, fewer or more than the model's own number;
            None takes that one. Without effect where the model has no drafter.
        reference: a text (or token ids) that the answer is expected to resemble, such as the file being edited: a
            further source of guesses for the drafters ngram and suffix, alone or in a cascade. Others make no use of
            it. It is no part of the prompt: the model never reads it, and nothing counts it.
    """

    enabled: bool = True
    num_speculative_tokens: int | None = None
    reference: str | Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise ConfigError(f"enabled is {self.enabled!r}; allowed: True or False")
        number = self.num_speculative_tokens
        is_number = type(number) is int and 0 <= number <= MAX_SPECULATIVE_TOKENS
        if number is not None and not is_number:
            raise ConfigError(
                f"num_speculative_tokens is {number!r}; allowed: a whole number, 0 to {MAX_SPECULATIVE_TOKENS}, or "
                f"None for the model's own"
            )
        if self.reference is not None and not isinstance(self.reference, str):
            object.__setattr__(self, "reference", _token_ids(self.reference))


def _token_ids(reference: Any) -> tuple[int, ...]:
    """As plain ints: numpy's are taken too, True and False are not."""
    try:
        ids = None if isinstance(reference, bytes) else tuple(reference)
        if ids is not None and not any(isinstance(token, bool) for token in ids):
            return tuple(operator.index(token) for token in ids)
    except TypeError:
        pass
    shown = repr(reference)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise ConfigError(f"reference is {shown}; allowed: a text, a list of token ids, or None")
