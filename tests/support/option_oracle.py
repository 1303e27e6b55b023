"""Plain decoding with every sampling option, written out from their definitions: no engine, no processor, no tree.

One token at a time, in numpy. Only the last step, drawing from the shaped row, is the library's: `warp.draw` has its
own tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from foreword.sampling.noise import Stream, row_key
from foreword.sampling.params import SamplingParams
from foreword.sampling.warp import draw
from tests.support.toy_decoder import ToyDecoder

Processor = Callable[[list[int], list[int], np.ndarray], None]  # (all tokens, answer, row to change)


class ConstDecoder(ToyDecoder):
    """The same logits everywhere."""

    def __init__(self, logits: Sequence[float]) -> None:
        super().__init__(vocab_size=len(logits))
        self.row = torch.tensor(logits, dtype=torch.float32)

    def __hash__(self) -> int:
        return hash(tuple(self.row.tolist()))

    def logits_after(self, tokens, position: int) -> torch.Tensor:
        return self.row


@dataclass
class Answer:
    token_ids: list[int]
    finish_reason: str
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)  # raw log-softmax rows


def plain_answer(
    decoder: ToyDecoder,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    eos: Sequence[int] = (),
    decode: Callable[[list[int]], str] | None = None,
    may_follow: Callable[[list[int], int], bool] | None = None,
    processors: Sequence[Processor] = (),
    sample_index: int = 0,
) -> Answer:
    """What one-token-a-pass decoding gives.

    `may_follow(answer, token)` is the grammar; `processors` stand for the user's.
    """
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos))
    tokens, answer = list(prompt), Answer([], "length")
    limit = min(params.max_tokens, decoder.spec.context_len - len(prompt))
    while len(answer.token_ids) < limit:
        new = answer.token_ids
        raw = decoder.logits_after(tokens, len(tokens) - 1)
        row = raw.numpy().astype(np.float32).copy()
        _rule_out(row, tokens, new, params, ends, may_follow)
        _penalize(row, tokens, new, params)
        for processor in processors:
            processor(tokens, new, row)
        key = 0 if params.temperature == 0 else row_key(params.seed, sample_index, Stream.TARGET, len(tokens))
        token = draw(torch.from_numpy(row), params.warp, key)
        scores = raw.double().numpy()
        answer.rows.append(scores - (scores.max() + np.log(np.exp(scores - scores.max()).sum())))
        answer.logprobs.append(float(answer.rows[-1][token]))
        tokens.append(token)
        new.append(token)
        if decode is not None:
            answer.text = decode(new)
            starts = [answer.text.find(s) for s in params.stop if s in answer.text]
            if starts and len(new) > params.min_tokens:
                answer.text, answer.finish_reason = answer.text[: min(starts)], "stop"
                break
        if token in ends:
            answer.finish_reason = "stop"
            break
    return answer


def _rule_out(row, tokens, new, params, ends, may_follow) -> None:
    for token, bias in params.logit_bias:
        row[token] = np.float32(row[token] + np.float32(bias))
    for token in range(len(row)):
        is_banned = params.allowed_token_ids is not None and token not in params.allowed_token_ids
        for word in params.bad_words:
            is_banned |= [*tokens, token][-len(word) :] == list(word)
        if may_follow is not None:
            is_banned |= not may_follow(new, token)
        is_banned |= token in ends and len(new) < params.min_tokens
        if is_banned:
            row[token] = -np.inf


def _penalize(row, tokens, new, params) -> None:
    penalty = np.float32(params.repetition_penalty)
    for token in set(tokens):
        row[token] = row[token] * penalty if row[token] < 0 else row[token] / penalty
    for token in set(new):
        off = np.float32(params.frequency_penalty) * np.float32(new.count(token)) + np.float32(params.presence_penalty)
        row[token] = row[token] - off
