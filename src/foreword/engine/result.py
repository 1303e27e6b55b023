"""What a caller gets back."""

from dataclasses import dataclass

from foreword.engine.request import FinishReason
from foreword.engine.stats import RequestStats


@dataclass(frozen=True)
class Result:
    """The answer to one prompt."""

    prompt_token_ids: list[int]
    token_ids: list[int]  # the answer's, an end token included
    text: str  # without special tokens
    finish_reason: FinishReason
    seed: int  # the one used, also where none was given
    stats: RequestStats


@dataclass(frozen=True)
class Piece:
    """What one step added to a streamed answer. Joined, the texts are the result's text."""

    text: str  # never part of a character; may be empty
    token_ids: list[int]
    result: Result | None = None  # with the last piece
