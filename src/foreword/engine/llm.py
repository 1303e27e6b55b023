"""For people in a hurry: `LLM().generate("Once upon a time")`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.config import STEADY_METHOD
from foreword.draft.draft_config import DraftConfig, draft_config
from foreword.draft.registry import make_drafter
from foreword.engine.compatibility import check_pair
from foreword.engine.engine import Engine
from foreword.engine.intake import Intake
from foreword.engine.policy import check_policy, make_controller
from foreword.engine.profile_file import read_profile
from foreword.engine.prompts import Prompt, split_prompts
from foreword.engine.request import Request
from foreword.engine.result import Piece, Result
from foreword.engine.step import StepParts
from foreword.errors import ConfigError
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import LoadedModel, load_model
from foreword.target.target import Target
from foreword.verify.base import Matching, Verifier, make_verifier

logger = logging.getLogger(__name__)


class LLM:
    """A model that generates, drafting ahead.

    Args:
        model: a Hugging Face folder, a hub id, a GGUF file, None for the default model, or a model from `load_model`.
        drafter: a drafter's name, NAME=PATH, a mapping as vLLM's `speculative_config`, or a `DraftConfig`. None: the
            profile's, else "auto"; "ngram" with another verifier than "match", where what is said depends on what is drafted.
        num_speculative_tokens: most drafted tokens a step.
        verifier: how drafts are checked, by name or as an object; "match" keeps the very tokens of plain decoding.
        batch_size: most requests that run side by side.
        policy: who decides how much to draft: "fixed", "history" or "adaptive" (only what pays here and now).
            Default: adaptive for drafter "auto", fixed for the others.
        speculative_config: the same as a mapping in `drafter`, under the name that vLLM's users know.
        profile: a file that `foreword tune` wrote: its drafter, settings, runtime and threads, where none are asked for here.

    The rest is passed to `load_model`. Wrong values raise `ConfigError` before anything is loaded.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel | None = None,
        drafter: str | DraftConfig | Mapping[str, Any] | None = None,
        *,
        num_speculative_tokens: int | None = None,
        profile: str | Path | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        verifier: str | Verifier = "match",
        batch_size: int = 8,
        policy: str | None = None,
        **load_options: Any,
    ) -> None:
        if speculative_config is not None:
            if drafter is not None:
                raise ConfigError("drafter and speculative_config both name a drafter; give one of them")
            drafter = speculative_config
        tuned = None if profile is None else read_profile(profile)
        if drafter is None and tuned is not None:
            drafter, policy = tuned.draft_config, policy or tuned.policy
        rule = make_verifier(verifier)
        default = DraftConfig.method if rule.name == Matching.name else STEADY_METHOD
        self.config = draft_config({} if drafter is None else drafter, num_speculative_tokens, default)
        policy = policy or ("adaptive" if self.config.method == "auto" else "fixed")
        check_policy(policy)
        if type(batch_size) is not int or batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size!r}; allowed: a whole number, 1 or above")
        if isinstance(model, LoadedModel) and load_options:
            raise ConfigError(f"{', '.join(load_options)} cannot change a model that is already loaded")
        if tuned is not None:
            load_options = tuned.load_options(load_options)
        self.model = model if isinstance(model, LoadedModel) else load_model(model, **load_options)
        if tuned is not None:
            tuned.check_model(self.model)
        target = Target(self.model.decoder, self.model)
        drafter_ = make_drafter(self.config, target, rule.draft_mode)
        check_pair(drafter_, rule)
        self._warns_of_reference = self.config.method != "none" and not drafter_.uses_reference
        # Without a drafter nothing is planned, so that not even the tokens that a grammar forces are drafted.
        if self.config.num_speculative_tokens is None:
            self.config = replace(self.config, num_speculative_tokens=drafter_.default_num_nodes)
        num_nodes = 0 if self.config.method == "none" else self.config.num_speculative_tokens or 0
        controller = make_controller(policy if num_nodes else "fixed", target, num_nodes, self.config.method)
        self.engine = Engine(StepParts(controller, drafter_, target, rule), batch_size, num_idle=batch_size)
        self._intake = Intake(self.model.checkpoint)

    @classmethod
    def from_transformers(
        cls, model: Any, tokenizer: Any, drafter: str | DraftConfig | Mapping[str, Any] | None = None, **options: Any
    ) -> "LLM":
        """A model that transformers holds, with its tokenizer: any that attends in all its layers.

        The weights are shared, not copied. `UnsupportedModelError` says why a model cannot read trees of drafts. The
        options are those of `LLM`, without those of loading.
        """
        from foreword.target.hf_load import adopt_model

        return cls(adopt_model(model, tokenizer), drafter, **options)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self.model.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
    ) -> list[Result]:
        """Answer one prompt or many, in order. A prompt is plain text, token ids or chat messages.

        `params` and `drafting` are one for all prompts, or one a prompt; drafting params change how fast an answer
        comes. Every prompt is checked before any is run. With `n` answers a prompt, those of a prompt follow each
        other (`Result.sample_index`).
        """
        return list(self.iterate(prompts, params, drafting=drafting))

    def iterate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
    ) -> Iterator[Result]:
        """As `generate`, but each answer as soon as it and those before it are there."""
        return self._results(self._requests(split_prompts(prompts), params, drafting))

    def as_completed(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """As `iterate`, but each answer as soon as it is there, with its place in `generate`'s list."""
        return self._completed(self._requests(split_prompts(prompts), params, drafting))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, drafting: DraftingParams | None = None
    ) -> Iterator[Piece]:
        """Answer one prompt, piece by piece. A reader that goes away frees the request.

        No piece ends inside a character or shows the beginning of a stop string. With `n` answers their pieces come in
        turn (`Piece.sample_index`).
        """
        return self._pieces(self._requests([prompt], params, drafting, streams=True))

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, drafting: DraftingParams | None = None
    ) -> AsyncIterator[Piece]:
        """As `stream`, for `async for`. Passes run in a thread, so the event loop stays free and streams share them."""
        return self._async_pieces(self._requests([prompt], params, drafting, streams=True))

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary and the context; `ConfigError` says what is wrong."""
        return self._intake.encode(prompt)

    def _requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None,
        streams: bool = False,
    ) -> list[Request]:
        """Checked; says once where a reference is of no use."""
        requests = self._intake.requests(prompts, params, drafting, streams=streams)
        if self._warns_of_reference and any(r.drafting.enabled and r.reference_ids for r in requests):
            self._warns_of_reference = False
            logger.warning(
                "drafter %r makes no use of a reference; ngram and suffix do, alone or in a cascade such as 'ngram,%s'",
                self.config.method,
                self.config.method,
            )
        return requests

    def _results(self, requests: Sequence[Request]) -> Iterator[Result]:
        for request in requests:
            self.engine.add(request)
        try:
            for request in requests:
                while not request.is_finished:
                    self.engine.advance(requests)
                with self.engine.lock:
                    result = self._result(request)
                yield result
        finally:
            self._abort(requests)

    def _completed(self, requests: Sequence[Request]) -> Iterator[tuple[int, Result]]:
        for request in requests:
            self.engine.add(request)
        open_ = dict(enumerate(requests))
        try:
            while open_:
                with self.engine.lock:
                    ended = [(place, self._result(r)) for place, r in open_.items() if r.is_finished]
                for place, result in ended:
                    del open_[place]
                    yield place, result
                if open_ and not ended:
                    self.engine.advance(requests)
        finally:
            self._abort(requests)

    def _pieces(self, requests: Sequence[Request]) -> Iterator[Piece]:
        readers = self._begin(requests)
        try:
            while any(not reader.is_done for reader in readers):
                yield from self._advance(readers)
        finally:
            self._abort(requests)

    async def _async_pieces(self, requests: Sequence[Request]) -> AsyncIterator[Piece]:
        readers = self._begin(requests)
        try:
            while any(not reader.is_done for reader in readers):
                for piece in await asyncio.to_thread(self._advance, readers):
                    yield piece
        finally:
            self._abort(requests)

    def _begin(self, requests: Sequence[Request]) -> list["_Reader"]:
        for request in requests:
            self.engine.add(request)
        return [_Reader(request) for request in requests]

    def _advance(self, readers: Sequence["_Reader"]) -> list[Piece]:
        """One step, and what it brought these readers."""
        with self.engine.lock:  # another thread's step may advance the same requests
            if any(not reader.request.is_finished for reader in readers):
                self.engine.advance([reader.request for reader in readers])
            return [piece for reader in readers for piece in self._new_pieces(reader)]

    def _new_pieces(self, reader: "_Reader") -> Iterator[Piece]:
        """What is new since the last look; with the result once the answer has ended."""
        request = reader.request
        if reader.is_done:
            return
        assert request.text is not None, "a streamed request follows its text"
        result = self._result(request) if request.is_finished else None
        token_ids = request.new_ids[reader.num_sent :]
        if request.is_finished or token_ids:
            reader.num_sent += len(token_ids)
            reader.is_done = request.is_finished
            yield Piece(request.text.show(), token_ids, result, request.sampler.sample_index)

    def _abort(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.engine.abort(request)

    def _result(self, request: Request) -> Result:
        """What a caller gets of a request that has ended; raises the error that ended it before its time."""
        if request.error is not None:
            raise request.error
        new_ids, params = request.new_ids, request.params
        assert request.finish_reason is not None, "a result is made of a request that has ended"
        assert params.seed is not None
        if request.text is not None:
            text = request.text.finish()
        else:
            text = self.tokenizer.decode(new_ids) if new_ids else ""
        return Result(
            prompt_token_ids=request.token_ids[: request.prompt_len],
            token_ids=new_ids,
            text=text,
            finish_reason=request.finish_reason,
            seed=params.seed,
            stats=request.stats,
            sample_index=request.sampler.sample_index,
            stop_string=None if request.text is None else request.text.stop_string,
            logprobs=None if params.logprobs is None else request.logprobs,
            prompt_logprobs=None if params.prompt_logprobs is None else request.prompt_logprobs,
        )


@dataclass
class _Reader:
    """How far one streamed answer has been handed out."""

    request: Request
    num_sent: int = 0
    is_done: bool = False
