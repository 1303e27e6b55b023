"""Input processor: turns prompts and options into requests and raises every error about them before anything runs."""

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from foreword.engine.answer_text import AnswerText
from foreword.engine.prompts import Prompt, given_ids, prompt_ids
from foreword.engine.request import Request
from foreword.engine.result import RequestId
from foreword.errors import ConfigError, PromptTooLongError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.grammar import Grammar
from foreword.sampling.grammar_matcher import GrammarCompiler, GrammarMatcher
from foreword.sampling.params import SamplingParams
from foreword.target.model_source import ModelSource

T = TypeVar("T")
_numbers = itertools.count(1)
_PROCESS = secrets.token_hex(4)  # ids that are made are none that a caller thinks of


@dataclass(frozen=True, eq=False)
class PreparedPrompt:
    """A prompt that has been checked and tokenized. Makes the requests for its `n` answers."""

    request_id: RequestId  # of all its answers
    token_ids: list[int]
    params: SamplingParams  # with a seed, and ids for texts
    drafting: DraftingParams
    model: ModelSource
    grammar: GrammarMatcher | None = None  # at its start; every request gets a copy
    streams: bool = False

    def request(self, sample: int) -> Request:
        """The request for one answer."""
        text = None
        params = self.params
        if self.streams or params.stop or not params.skip_special_tokens:
            stream = self.model.tokenizer.stream(params.skip_special_tokens)
            ends = () if params.skip_special_tokens or params.ignore_eos else self.model.eos_token_ids
            text = AnswerText(stream, params.stop, params.min_tokens, silent_ids=ends)
        return Request(
            self.token_ids,
            self.params,
            context_len=self.model.spec.context_len,
            eos_token_ids=self.model.eos_token_ids,
            sample_index=sample,
            text=text,
            grammar=None if self.grammar is None else self.grammar.copy(),
            drafting=self.drafting,
            public_id=self.request_id,
        )


class InputProcessor:
    """Prepares prompts for one model. Tokenizer and grammar compiler are made at their first use."""

    def __init__(self, checkpoint: ModelSource) -> None:
        self._checkpoint = checkpoint
        self._grammars: GrammarCompiler | None = None

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary and the context."""
        spec = self._checkpoint.spec
        needs_tokenizer = given_ids(prompt) is None
        token_ids = prompt_ids(prompt, self._checkpoint.tokenizer if needs_tokenizer else None, spec.vocab_size)
        if len(token_ids) >= spec.context_len:
            raise PromptTooLongError(len(token_ids), spec.context_len)
        return token_ids

    def prepare(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
        request_ids: RequestId | Sequence[RequestId] | None = None,
        *,
        streams: bool = False,
    ) -> list[PreparedPrompt]:
        """One a prompt; `streams` gives its answers their growing texts. Ids that are not given are made."""
        params = _one_each(params, SamplingParams(), len(prompts), "sampling params")
        drafting = self._with_reference_ids(_one_each(drafting, DraftingParams(), len(prompts), "drafting params"))
        each = zip(prompts, params, drafting, _ids(request_ids, len(prompts)), strict=True)
        return [self._prepared(*given, streams=streams) for given in each]

    def _prepared(
        self, prompt: Prompt, params: SamplingParams, drafting: DraftingParams, request_id: RequestId, *, streams: bool
    ) -> PreparedPrompt:
        token_ids, ready = self.encode(prompt), self._checked(params)
        if streams or ready.stop or not ready.skip_special_tokens:
            _ = self._checkpoint.tokenizer  # a model without one is told of here
        grammar = None if ready.grammar is None else self._matcher(ready.grammar)
        return PreparedPrompt(request_id, token_ids, ready, drafting, self._checkpoint, grammar, streams)

    def _with_reference_ids(self, drafting: Sequence[DraftingParams]) -> list[DraftingParams]:
        """With ids for texts, checked against the vocabulary. Equal ones are worked out once."""
        ready = {given: given for given in drafting}
        for given in ready:
            if given.reference:
                ready[given] = replace(given, reference=self._reference_ids(given.reference))
        return [ready[given] for given in drafting]

    def _reference_ids(self, reference: str | Sequence[int]) -> Sequence[int]:
        if isinstance(reference, str):
            reference = self._checkpoint.tokenizer.encode(reference, add_special_tokens=False)
        vocab_size = self._checkpoint.spec.vocab_size
        for token in reference:
            if not 0 <= token < vocab_size:
                raise ConfigError(
                    f"the reference has token id {token}, which is outside the model's vocabulary; "
                    f"allowed: 0 to {vocab_size - 1}"
                )
        return reference

    def _checked(self, params: SamplingParams) -> SamplingParams:
        """With ids for texts and one seed for all samples."""
        if any(isinstance(word, str) for word in params.bad_words):
            tokenizer = self._checkpoint.tokenizer
            params = params.with_bad_word_ids(lambda text: tokenizer.encode(text, add_special_tokens=False))
        params = self._with_special_stops(params)
        params.check_vocabulary(self._checkpoint.spec.vocab_size)
        return params.with_seed()

    def _with_special_stops(self, params: SamplingParams) -> SamplingParams:
        """A stop string that is a special token stops at the token: the text of an answer leaves special tokens out."""
        if not params.stop or not params.skip_special_tokens:
            return params
        ids = {text: self._checkpoint.tokenizer.special_id(text) for text in params.stop}
        special = [token for token in ids.values() if token is not None]
        if not special:
            return params
        rest = tuple(text for text in params.stop if ids[text] is None)
        return replace(params, stop=rest, stop_token_ids=(*params.stop_token_ids, *special))

    def _matcher(self, grammar: Grammar) -> GrammarMatcher:
        checkpoint = self._checkpoint
        if self._grammars is None:
            self._grammars = GrammarCompiler(checkpoint.tokenizer, checkpoint.spec.vocab_size, checkpoint.eos_token_ids)
        return self._grammars.compile(grammar)


def _ids(given: RequestId | Sequence[RequestId] | None, num_prompts: int) -> list[RequestId]:
    """An id a prompt, all different; made where none is given."""
    if given is None:
        return [f"request-{_PROCESS}-{next(_numbers)}" for _ in range(num_prompts)]
    ids = [given] if isinstance(given, str | int) else list(given) if isinstance(given, Sequence) else [None]
    wrong = [i for i in ids if not isinstance(i, str | int) or isinstance(i, bool) or i == ""]
    if wrong:
        raise ConfigError(f"request_id is {given!r}; allowed: a text, a whole number, or a list of one per prompt")
    if len(ids) != num_prompts:
        raise ConfigError(f"{len(ids)} request ids for {num_prompts} prompts; give one per prompt, or none")
    if len(set(ids)) < len(ids):
        raise ConfigError("request_id has an id twice; every prompt needs one of its own")
    return ids  # type: ignore[return-value]


def _one_each(given: Any, default: T, num_prompts: int, words: str) -> list[T]:
    """Options per prompt, where one for all, one per prompt, or none were given."""
    kind = type(default)
    if given is None or isinstance(given, kind):
        return [default if given is None else given] * num_prompts
    each = list(given) if isinstance(given, Sequence) else [given]
    wrong = [item for item in each if item is not None and not isinstance(item, kind)]
    if wrong:
        raise ConfigError(f"{words} are {wrong[0]!r}; allowed: one {kind.__name__}, or a list of one per prompt")
    if len(each) != num_prompts:
        raise ConfigError(f"{len(each)} {words} for {num_prompts} prompts; give one, or one per prompt")
    return [default if item is None else item for item in each]
