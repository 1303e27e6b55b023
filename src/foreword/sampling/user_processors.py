"""What a user's own logits processor is: a function, or an object that keeps count."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

Row = Float[Tensor, " vocab"]


class LogitsProcessor(Protocol):
    """A user's own change of logits: a function of its arguments."""

    def __call__(self, token_ids: Sequence[int], logits: Row) -> Row:
        """Logits (may be the argument, changed) after `token_ids`: prompt, answer, and the draft's own path."""
        ...


@runtime_checkable
class StatefulProcessor(Protocol):
    """A processor that keeps count. State changes in `accept` alone.

    Drafted tokens may be dropped again, so the object given is never changed: copies follow the tokens, one for every
    place that is looked at, and whatever a call changes in its copy is lost.
    """

    def __call__(self, token_ids: Sequence[int], logits: Row) -> Row:
        """As `LogitsProcessor`."""
        ...

    def clone(self) -> "StatefulProcessor":
        """A copy that shares nothing that changes."""
        ...

    def accept(self, token_id: int) -> None:
        """One more token of the answer."""
        ...
