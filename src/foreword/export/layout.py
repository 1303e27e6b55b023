"""What an engine is given: a configuration and tensors, by the engine's own names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ENGINES = ("vllm", "sglang", "llama.cpp", "speculators")


@dataclass(frozen=True, eq=False)
class Layout:
    """One drafter in the layout of one engine.

    `same_guesses`: whether the drafter proposes exactly what it proposed before. Where an engine knows no draft vocabulary
    it proposes from the whole one, and then it may differ.
    """

    engine: str
    method: str  # foreword's name of the drafter that reads it back
    config: Mapping[str, Any]
    tensors: Mapping[str, "Tensor"]
    same_guesses: bool = True
    needs_tokenizer: bool = False  # of the target, beside the weights
    notes: tuple[str, ...] = field(default=())  # what changed and why, for the card
