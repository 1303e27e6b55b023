"""Weights of a drafter whose files leave out what is its target's own: the embedding, the head or some rows of it."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from foreword.checkpoint.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


@final
class BorrowedWeights:
    """`WeightSource` of a drafter: its own tensors, then those that are the target's.

    Args:
        own: what the drafter's files hold.
        target: the target's weights.
        borrowed: canonical name -> the target's name, for what the files leave out.
        head_rows: the target's rows that a borrowed "head.weight" consists of; all unless given. They must follow from
            the drafter's files, whose fingerprint speaks for them.
    """

    def __init__(
        self, own: Weights, target: Weights, borrowed: Mapping[str, str], head_rows: "Tensor | None" = None
    ) -> None:
        self._own, self._target, self._head_rows = own, target, head_rows
        self._borrowed = {name: theirs for name, theirs in borrowed.items() if not own.has_tensor(name)}

    @property
    def fingerprint(self) -> str:
        """Of both, where anything is borrowed."""
        sums = [self._own.fingerprint]
        if self._borrowed:
            sums += [self._target.fingerprint, *sorted(self._borrowed)]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def has_tensor(self, name: str) -> bool:
        """Whether it is there or can be borrowed."""
        return self._own.has_tensor(name) or name in self._borrowed

    def tensor(self, name: str) -> "Tensor":
        """Its own, or the target's."""
        if name not in self._borrowed:
            return self._own.tensor(name)
        theirs = self._target.tensor(self._borrowed[name])
        return theirs[self._head_rows] if name == "head.weight" and self._head_rows is not None else theirs
