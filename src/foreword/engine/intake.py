"""From prompts and options to requests: everything that can be wrong with them is said here, before anything runs."""

from collections.abc import Sequence

from foreword.checkpoint.checkpoint import Checkpoint
from foreword.engine.prompts import Prompt, given_ids, prompt_ids
from foreword.engine.request import Request
from foreword.engine.text import AnswerText
from foreword.errors import ConfigError, PromptTooLongError
from foreword.sampling.grammar import Grammar
from foreword.sampling.params import SamplingParams
from foreword.sampling.walker import GrammarCompiler, GrammarWalker


class Intake:
    """Makes requests for one model. Tokenizer and grammar compiler are made at their first use."""

    def __init__(self, checkpoint: Checkpoint) -> None:
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
        *,
        streams: bool = False,
    ) -> list[Request]:
        """`n` requests a prompt, samples of a prompt side by side; `streams` gives each its growing text."""
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ConfigError(f"{len(params)} sampling params for {len(prompts)} prompts; give one, or one a prompt")
        made: list[Request] = []
        for prompt, options in zip(prompts, params, strict=True):
            token_ids, ready = self.encode(prompt), self._checked(options)
            made += [self._request(token_ids, ready, sample, streams) for sample in range(ready.n)]
        return made

    def _checked(self, params: SamplingParams) -> SamplingParams:
        """With ids for texts and one seed for all samples."""
        if any(isinstance(word, str) for word in params.bad_words):
            tokenizer = self._checkpoint.tokenizer
            params = params.with_bad_word_ids(lambda text: tokenizer.encode(text, add_special_tokens=False))
        params.check_vocabulary(self._checkpoint.spec.vocab_size)
        return params.with_seed()

    def _request(self, token_ids: list[int], params: SamplingParams, sample: int, streams: bool) -> Request:
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
        )

    def _walker(self, grammar: Grammar) -> GrammarWalker:
        checkpoint = self._checkpoint
        if self._grammars is None:
            self._grammars = GrammarCompiler(checkpoint.tokenizer, checkpoint.spec.vocab_size, checkpoint.eos_token_ids)
        return self._grammars.compile(grammar)
