"""From prompts and options to requests: everything that can be wrong with them is said here, before anything runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from foreword.engine.answer_text import AnswerText
from foreword.engine.prompts import Prompt, given_ids, prompt_ids
from foreword.engine.request import Request
from foreword.errors import ConfigError, PromptTooLongError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.grammar import Grammar
from foreword.sampling.grammar_matcher import GrammarCompiler, GrammarWalker
from foreword.sampling.params import SamplingParams
from foreword.target.model_source import ModelSource

T = TypeVar("T")


class Intake:
    """Makes requests for one model. Tokenizer and grammar compiler are made at their first use."""

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

    def requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
        *,
        streams: bool = False,
    ) -> list[Request]:
        """`n` requests a prompt, samples of a prompt side by side; `streams` gives each its growing text."""
        params = _one_each(params, SamplingParams(), len(prompts), "sampling params")
        drafting = self._with_reference_ids(_one_each(drafting, DraftingParams(), len(prompts), "drafting params"))
        made: list[Request] = []
        for prompt, options, drafts in zip(prompts, params, drafting, strict=True):
            token_ids, ready = self.encode(prompt), self._checked(options)
            made += [self._request(token_ids, ready, drafts, sample, streams) for sample in range(ready.n)]
        return made

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
        if not params.stop:
            return params
        ids = {text: self._checkpoint.tokenizer.special_id(text) for text in params.stop}
        special = [token for token in ids.values() if token is not None]
        if not special:
            return params
        rest = tuple(text for text in params.stop if ids[text] is None)
        return replace(params, stop=rest, stop_token_ids=(*params.stop_token_ids, *special))

    def _request(
        self, token_ids: list[int], params: SamplingParams, drafting: DraftingParams, sample: int, streams: bool
    ) -> Request:
        text = None
        if streams or params.stop:
            text = AnswerText(self._checkpoint.tokenizer.stream(), params.stop, params.min_tokens)
        return Request(
            token_ids,
            params,
            context_len=self._checkpoint.spec.context_len,
            eos_token_ids=self._checkpoint.eos_token_ids,
            sample_index=sample,
            text=text,
            grammar=None if params.grammar is None else self._walker(params.grammar),
            drafting=drafting,
        )

    def _walker(self, grammar: Grammar) -> GrammarWalker:
        checkpoint = self._checkpoint
        if self._grammars is None:
            self._grammars = GrammarCompiler(checkpoint.tokenizer, checkpoint.spec.vocab_size, checkpoint.eos_token_ids)
        return self._grammars.compile(grammar)


def _one_each(given: Any, default: T, num_prompts: int, words: str) -> list[T]:
    """Options a prompt, where one for all, one a prompt, or none were given."""
    kind = type(default)
    if given is None or isinstance(given, kind):
        return [default if given is None else given] * num_prompts
    each = list(given) if isinstance(given, Sequence) else [given]
    wrong = [item for item in each if item is not None and not isinstance(item, kind)]
    if wrong:
        raise ConfigError(f"{words} are {wrong[0]!r}; allowed: one {kind.__name__}, or a list of one a prompt")
    if len(each) != num_prompts:
        raise ConfigError(f"{len(each)} {words} for {num_prompts} prompts; give one, or one a prompt")
    return [default if item is None else item for item in each]
