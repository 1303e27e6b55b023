"""Where a loaded model came from: what the engine needs of it besides passes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foreword.checkpoint.opened import Checkpoint
from foreword.config import ModelSpec

if TYPE_CHECKING:
    from foreword.checkpoint.tokenizer import Tokenizer


@dataclass(frozen=True)
class AdoptedModel:
    """A model that transformers holds, in the words of a `Checkpoint`."""

    spec: ModelSpec
    source: str  # what it is called in messages
    eos_token_ids: tuple[int, ...]  # all tokens that end an answer
    tokenizer: "Tokenizer"


ModelSource = Checkpoint | AdoptedModel
