"""Changes of logits by options and history, ahead of the warp.

The stages run in the order of `make_logits_processor`. Each row is changed by the tokens before it on its own path, and by nothing
else: a stage that keeps something between calls keeps a memo of a function. That is what makes them exact under
speculation.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foreword.errors import ConfigError
from foreword.sampling.grammar_matcher import GrammarMatcher
from foreword.sampling.params import SamplingParams
from foreword.sampling.user_processors import LogitsProcessor, Row, StatefulProcessor
from foreword.sampling.warp import NEVER

_MAX_STATES = 64  # copies of a stateful processor kept along one path


@dataclass(frozen=True)
class TransformersProcessor:
    """A stateless `LogitsProcessor` of transformers, made to fit."""

    processor: Callable[[Any, Any], Any]

    def __call__(self, token_ids: Sequence[int], logits: Row) -> Row:
        """Call it with a batch of one."""
        ids = torch.tensor([list(token_ids)], dtype=torch.long, device=logits.device)
        return self.processor(ids, logits[None])[0]


@dataclass(frozen=True)
class History:
    """The tokens before a position."""

    token_ids: Sequence[int]  # prompt and answer
    answer: Sequence[int]


Stage = Callable[[Row, History], Row]  # may change its argument


class ChainedProcessor:
    """All that one request's options do to logits before the warp. Satisfies `sampling.sampler.ProcessorChain`."""

    def __init__(self, stages: Sequence[Stage], end_ids: frozenset[int]) -> None:
        self._stages, self._end_ids = stages, end_ids

    def __call__(self, logits: Row, token_ids: Sequence[int], prompt_len: int) -> Row:
        """New logits; the argument stays as it is. Past an end token nothing counts any more, so nothing is done.

        Raises:
            ConfigError: the options leave no token, or a processor gave what is no number. A row that had such entries
                before (a drafter's, with a smaller vocabulary) goes through.
        """
        history = History(token_ids, token_ids[prompt_len:])
        if not self._end_ids.isdisjoint(history.answer):
            return logits
        shaped = logits.to(torch.float32, copy=True)
        for stage in self._stages:
            shaped = stage(shaped, history)
        highest = float(shaped.max())
        if not math.isfinite(highest) and bool(torch.isfinite(logits).all()):
            state = "no token is allowed" if highest == NEVER else f"the highest logit is {highest}"
            raise ConfigError(f"{state} after {len(history.answer)} tokens of an answer; look at its sampling options")
        return shaped


def make_logits_processor(
    params: SamplingParams, end_ids: frozenset[int] = frozenset(), grammar: GrammarMatcher | None = None
) -> ChainedProcessor | None:
    """The logits processor of some options; None where they leave logits unchanged, so that sampling may be fused into the pass."""
    makers: list[Stage | None] = [
        Bias(params.logit_bias) if params.logit_bias else None,
        OnlyAllowed(params.allowed_token_ids) if params.allowed_token_ids is not None else None,
        NoBadWords(params.bad_words) if params.bad_words else None,
        FollowGrammar(grammar) if grammar is not None else None,
        NoEarlyEnd(params.min_tokens, end_ids) if params.min_tokens and end_ids else None,
        PenalizeRepetition(params.repetition_penalty) if params.repetition_penalty != 1 else None,
        PenalizeOccurrence(params.presence_penalty, params.frequency_penalty)
        if params.presence_penalty or params.frequency_penalty
        else None,
        RunProcessors(params.logits_processors) if params.logits_processors else None,
    ]
    stages = [stage for stage in makers if stage is not None]
    return ChainedProcessor(stages, end_ids) if stages else None


class Bias:
    """Adds a number to the logits of some tokens."""

    def __init__(self, pairs: Any) -> None:
        self.ids = torch.tensor([token for token, _ in pairs])
        self.values = torch.tensor([bias for _, bias in pairs], dtype=torch.float32)

    def __call__(self, logits: Row, history: History) -> Row:
        """Add."""
        logits[self.ids.to(logits.device)] += self.values.to(logits.device)
        return logits


class OnlyAllowed:
    """Excludes all tokens except the allowed ones."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.ids = torch.tensor(sorted(set(token_ids)))

    def __call__(self, logits: Row, history: History) -> Row:
        """Keep the allowed ones."""
        ids = self.ids.to(logits.device)
        return torch.full_like(logits, NEVER).index_copy_(0, ids, logits[ids])


class NoBadWords:
    """Excludes the last token of a sequence where the tokens before it are its first ones, in prompt or answer."""

    def __init__(self, words: Sequence[Any]) -> None:
        if any(isinstance(word, str) for word in words):
            raise ConfigError("bad_words has texts; turn them into token ids by SamplingParams.with_bad_word_ids")
        self.words = [tuple(word) for word in words]

    def __call__(self, logits: Row, history: History) -> Row:
        """Ban."""
        for *head, last in self.words:
            if not head or list(history.token_ids[-len(head) :]) == head:
                logits[last] = NEVER
        return logits


class FollowGrammar:
    """Excludes what the grammar does not allow at this position."""

    def __init__(self, grammar: GrammarMatcher) -> None:
        self.grammar = grammar

    def __call__(self, logits: Row, history: History) -> Row:
        """Mask. On a path that the grammar forbids nothing is done: it is never reached."""
        allowed = self.grammar.allowed(history.answer)
        return logits if allowed is None else logits.masked_fill_(~allowed.to(logits.device), NEVER)


class NoEarlyEnd:
    """Excludes the tokens that end an answer until it has a minimum length.

    They stay where nothing else is left, as when a grammar has come to its end.
    """

    def __init__(self, min_tokens: int, end_ids: frozenset[int]) -> None:
        self.min_tokens, self.ids = min_tokens, torch.tensor(sorted(end_ids))

    def __call__(self, logits: Row, history: History) -> Row:
        """Ban."""
        if len(history.answer) >= self.min_tokens:
            return logits
        rest = logits.index_fill(0, self.ids.to(logits.device), NEVER)
        return logits if float(rest.max()) == NEVER else rest


class PenalizeRepetition:
    """Divides positive logits of tokens of prompt and answer by the penalty, multiplies negative ones [ctrl19]."""

    def __init__(self, penalty: float) -> None:
        self.penalty = penalty

    def __call__(self, logits: Row, history: History) -> Row:
        """Once per token, however often it occurs."""
        ids = torch.tensor(list(set(history.token_ids)), device=logits.device)
        seen = logits[ids]
        logits[ids] = torch.where(seen < 0, seen * self.penalty, seen / self.penalty)
        return logits


class PenalizeOccurrence:
    """Takes frequency * count + presence off the logits of the answer's tokens.

    Worked out from counts in one step: repeated subtraction rounds otherwise, and would depend on how the text was
    made.
    """

    def __init__(self, presence: float, frequency: float) -> None:
        self.presence, self.frequency = presence, frequency

    def __call__(self, logits: Row, history: History) -> Row:
        """Penalize."""
        if history.answer:
            counts = Counter(history.answer)
            ids = torch.tensor(list(counts), device=logits.device)
            numbers = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
            logits[ids] -= self.frequency * numbers + self.presence
        return logits


class RunProcessors:
    """Runs the user's own processors, in order. What is ruled out already stays out."""

    def __init__(self, processors: Sequence[LogitsProcessor | StatefulProcessor]) -> None:
        self.processors = [_StatePath(p) if isinstance(p, StatefulProcessor) else _Stateless(p) for p in processors]

    def __call__(self, logits: Row, history: History) -> Row:
        """Run."""
        for processor in self.processors:
            before = logits
            logits = processor.at(history.answer)(list(history.token_ids), logits.clone())
            if not isinstance(logits, Tensor) or logits.shape != before.shape:
                got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
                raise ConfigError(f"a logits processor returned {got}; allowed: logits of shape {tuple(before.shape)}")
            logits = logits.masked_fill(before == NEVER, NEVER)
        return logits


class _Stateless:
    """A processor that is the same everywhere."""

    def __init__(self, processor: LogitsProcessor) -> None:
        self.processor = processor

    def at(self, answer: Sequence[int]) -> LogitsProcessor:
        return self.processor


class _StatePath:
    """Copies of a stateful processor along the last path; the longest one that is a prefix continues."""

    def __init__(self, processor: StatefulProcessor) -> None:
        self._path: list[int] = []
        self._states = [(0, processor.clone())]  # (tokens accepted, copy); the first one stays

    def at(self, answer: Sequence[int]) -> StatefulProcessor:
        """A copy that has accepted `answer`."""
        path = list(answer)
        while path[: self._states[-1][0]] != self._path[: self._states[-1][0]] or self._states[-1][0] > len(path):
            self._states.pop()
        num_accepted, state = self._states[-1]
        for token in path[num_accepted:]:
            state = state.clone()
            state.accept(token)
            num_accepted += 1
            self._states.append((num_accepted, state))
        del self._states[1 : max(1, len(self._states) - _MAX_STATES)]
        self._path = path
        return state.clone()
