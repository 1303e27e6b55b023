"""Drafting options of one request: they change the speed of its answer, never its tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foreword.config import MAX_SPECULATIVE_TOKENS
from foreword.errors import ConfigError
from foreword.validate import Bounds, refusal, token_ids


@dataclass(frozen=True, kw_only=True)
class DraftingParams:
    """Options of one request, beside its `SamplingParams`. Wrong values raise `ConfigError`.

    Args:
        enabled: False decodes this request plainly, whatever drafter the model has.
        num_speculative_tokens: most drafted tokens per step for this request, fewer or more than the model's own number;
            None takes that one. Without effect where the model has no drafter.
        reference: a text (or token ids) that the answer is expected to resemble, such as the file being edited: a
            further source of draft tokens for the drafters ngram, suffix and memory, alone or in a cascade. Others do not use
            it. It is no part of the prompt: the model never reads it, and nothing counts it.
        remember: False keeps this answer out of the memory of the drafters auto and memory, and out of suffix's past
            outputs, in the process and on disk. It may still be drafted from what others left there. The table of
            recycling, which holds single tokens and their likely successors, takes it in all the same.
    """

    enabled: bool = True
    num_speculative_tokens: int | None = None
    reference: str | Sequence[int] | None = None
    remember: bool = True

    def __post_init__(self) -> None:
        Bounds(bool).checked("enabled", self.enabled)
        Bounds(bool).checked("remember", self.remember)
        amount = Bounds(int, 0, MAX_SPECULATIVE_TOKENS, or_none=True)
        number = amount.checked("num_speculative_tokens", self.num_speculative_tokens)
        object.__setattr__(self, "num_speculative_tokens", number)
        if self.reference is not None and not isinstance(self.reference, str):
            object.__setattr__(self, "reference", _reference_ids(self.reference))


def _reference_ids(reference: Any) -> tuple[int, ...]:
    """As plain ints; bytes are numbers to Python, and no token ids."""
    try:
        if not isinstance(reference, bytes | bytearray | memoryview):
            return token_ids("reference", reference)
    except ConfigError:
        pass
    raise refusal("reference", reference, "a text, a list of token ids, or None")
