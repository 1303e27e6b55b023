"""The types that generation returns."""

from dataclasses import dataclass, field
from typing import Literal

from foreword.engine.stats import RequestStats

FinishReason = Literal["stop", "length", "abort", "timeout"]
RequestId = str | int  # what a caller calls a request


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability (natural logarithm) before any sampling option."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the top tokens with theirs, highest first, as many as requested


@dataclass(frozen=True)
class Result:
    """One answer to one prompt."""

    prompt_token_ids: list[int]
    token_ids: list[int]  # the answer's; an end token, or the one that completes a stop string, included
    text: str  # without special tokens; ends before a stop string
    finish_reason: FinishReason
    seed: int  # the one used, also where none was given
    stats: RequestStats
    sample_index: int = 0  # which of the prompt's n answers
    stop_string: str | None = None  # the one that ended it
    logprobs: list[TokenLogprob] | None = None  # one for each of token_ids
    prompt_logprobs: list[TokenLogprob | None] | None = None  # one for each of the prompt's; the first has none
    request_id: RequestId = ""  # of the prompt: the caller's, or one that was made
    # For each of token_ids the drafter that proposed it, or "grammar"; None where it was not drafted.
    drafted_by: list[str | None] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """What was added to a streamed answer since the piece before. Joined, the texts are the result's text."""

    text: str  # never part of a character; may be empty
    token_ids: list[int]  # new ones; their text may come later, where it is held back
    result: Result | None = None  # with the last piece
    sample_index: int = 0
    request_id: RequestId = ""
    drafted_by: list[str | None] = field(default_factory=list)  # for each of token_ids, as in the result
    stats: RequestStats = field(default_factory=RequestStats)  # of the answer so far
    logprobs: list[TokenLogprob] | None = None  # for each of token_ids, where they were asked for
