"""From results to what clients read: usage, log-probabilities, and what was speculated."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.engine.result import Piece, Result, TokenLogprob
from foreword.engine.stats import RequestStats
from foreword.server.wire.common import SamplingFields

_FINISHED = {
    "abort": "stop",
    "timeout": "length",
}  # words of ours that the OpenAI API lacks, and the nearest of its own


def finish_reason(result: Result, *, has_calls: bool = False) -> str:
    """In the words of the OpenAI API."""
    if has_calls and result.finish_reason == "stop":
        return "tool_calls"
    return _FINISHED.get(result.finish_reason, result.finish_reason)


def usage(results: Sequence[Result], predicted_ids: Sequence[int] | None = None) -> dict[str, Any]:
    """Tokens of a whole request: each prompt counts once, however many answers it has."""
    prompts = [result for result in results if result.sample_index == 0]
    num_prompt = sum(len(result.prompt_token_ids) for result in prompts)
    num_new = sum(len(result.token_ids) for result in results)
    details: dict[str, Any] = {"reasoning_tokens": 0}
    if predicted_ids is not None:
        num_accepted = sum(num_common(predicted_ids, result.token_ids) for result in results)
        num_rejected = len(predicted_ids) * len(results) - num_accepted
        details |= {"accepted_prediction_tokens": num_accepted, "rejected_prediction_tokens": num_rejected}
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
        "prompt_tokens_details": {"cached_tokens": sum(result.stats.cached_tokens for result in prompts)},
        "completion_tokens_details": details,
    }


def num_common(predicted: Sequence[int], answer: Sequence[int]) -> int:
    """Tokens of a predicted text that stand in the answer, in order."""
    matcher = SequenceMatcher(None, predicted, answer, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks())


class TokenTexts:
    """The text that each token of an answer adds; joined, they are the answer's text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._stream = tokenizer.stream()

    def push(self, token_ids: Sequence[int], is_last: bool) -> list[str]:
        """One per token. What a token holds back comes with the one that completes it."""
        texts = [self._stream.push([token]) for token in token_ids]
        if is_last and texts:
            texts[-1] += self._stream.finish()
        return texts


def speculation(
    texts: Sequence[str], drafted_by: Sequence[str | None], stats: RequestStats, num_new: int
) -> dict[str, Any]:
    """What was drafted, by whom, and what became of it; `tokens` are those of this chunk, the counts those so far."""
    return {
        "tokens": [{"text": text, "drafter": name} for text, name in zip(texts, drafted_by, strict=True)],
        "steps": stats.num_steps,
        "new_tokens": num_new,
        "tokens_per_step": (num_new - 1) / stats.num_steps if stats.num_steps else None,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "drafted_tokens_by": dict(stats.drafted_tokens_by),
        "accepted_tokens_by": dict(stats.accepted_tokens_by),
        "drafted_at_depth": list(stats.drafted_at_depth),
        "accepted_at_depth": list(stats.accepted_at_depth),
        "saved_s": stats.saved_s,
    }


def result_speculation(result: Result, tokenizer: Tokenizer) -> dict[str, Any]:
    """Of a whole answer."""
    texts = TokenTexts(tokenizer).push(result.token_ids, is_last=True)
    return speculation(texts, result.drafted_by, result.stats, len(result.token_ids))


def add_details(choice: dict[str, Any], asked: SamplingFields, result: Result, tokenizer: Tokenizer) -> None:
    """What a request asked for beside the text of a whole answer."""
    if asked.include_speculation:
        choice["speculation"] = result_speculation(result, tokenizer)
    if asked.return_token_ids:
        choice["token_ids"] = result.token_ids


class PieceDetails:
    """The same for one streamed answer, piece by piece."""

    def __init__(self, asked: SamplingFields, tokenizer: Tokenizer) -> None:
        self._asked, self._texts = asked, TokenTexts(tokenizer)
        self._num_new = 0

    def add(self, choice: dict[str, Any], piece: Piece) -> None:
        """Put what the piece brings into its choice."""
        self._num_new += len(piece.token_ids)
        if self._asked.include_speculation:
            texts = self._texts.push(piece.token_ids, piece.result is not None)
            choice["speculation"] = speculation(texts, piece.drafted_by, piece.stats, self._num_new)
        if self._asked.return_token_ids:
            choice["token_ids"] = piece.token_ids


def chat_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """As chat completions have them."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}

    content = [one(p.token_id, p.logprob) | {"top_logprobs": [one(*top) for top in p.top]} for p in logprobs]
    return {"content": content, "refusal": None}


class Offsets:
    """Where each token begins in the text of an answer; one that is part of a character, where that does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._texts, self._length = TokenTexts(tokenizer), 0

    def push(self, token_ids: Sequence[int]) -> list[int]:
        """Of the next tokens."""
        offsets = []
        for text in self._texts.push(token_ids, is_last=False):
            offsets.append(self._length)
            self._length += len(text)
        return offsets


def completion_logprobs(
    logprobs: Sequence[TokenLogprob | None], token_ids: Sequence[int], tokenizer: Tokenizer, offsets: Offsets
) -> dict[str, Any]:
    """As completions have them."""

    def text_of(token: int) -> str:
        return tokenizer.token_bytes(token).decode(errors="replace")

    return {
        "tokens": [text_of(token) for token in token_ids],
        "token_logprobs": [None if p is None else p.logprob for p in logprobs],
        "top_logprobs": [
            None if p is None else {text_of(token): logprob for token, logprob in (*p.top, (p.token_id, p.logprob))}
            for p in logprobs
        ],
        "text_offset": offsets.push(token_ids),
    }
