"""For people in a hurry: `LLM().generate("Once upon a time")`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.checkpoint.checkpoint import Checkpoint, open_checkpoint
from foreword.checkpoint.tokenizer import TextStream, Tokenizer
from foreword.config import DraftConfig, draft_config, parse_draft_config
from foreword.draft.registry import check_drafter_name, make_drafter
from foreword.engine.controller import FixedController
from foreword.engine.engine import Engine
from foreword.engine.prompts import Prompt, prompt_ids, split_prompts
from foreword.engine.request import Request
from foreword.engine.result import Piece, Result
from foreword.engine.step import StepParts
from foreword.errors import ConfigError, PromptTooLongError
from foreword.runtime.base import Decoder
from foreword.runtime.select import RuntimeChoice, check_threads, choose_runtime, make_runtime
from foreword.sampling.params import SamplingParams
from foreword.target.target import Target
from foreword.verify.base import Verifier, make_verifier


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory; several `LLM`s may share it."""

    checkpoint: Checkpoint
    choice: RuntimeChoice
    decoder: Decoder

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self.checkpoint.tokenizer


def load_model(
    model: str | Path | None = None,
    *,
    runtime: str = "auto",
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    cache_dir: Path | None = None,
    show_progress: bool = False,
) -> LoadedModel:
    """Bring a model into memory: a Hugging Face folder, a hub id, a GGUF file, or None for the default model."""
    choice = choose_runtime(runtime, dtype, device)
    check_threads(threads)
    checkpoint = open_checkpoint(model, cache_dir=cache_dir, progress=show_progress)
    weights = checkpoint.as_dtype(choice.dtype, show_progress) if choice.name == "torch" else checkpoint
    return LoadedModel(checkpoint, choice, make_runtime(choice, threads).decoder(checkpoint.spec, weights))


class LLM:
    """A model that generates, drafting ahead.

    Args:
        model: a Hugging Face folder, a hub id, a GGUF file, None for the default model, or a model from `load_model`.
        drafter: a drafter's name, NAME=PATH, a mapping in the spelling of vLLM's `speculative_config`, or a `DraftConfig`.
        num_speculative_tokens: most drafted tokens a step.
        verifier: how drafts are checked, by name or as an object; "match" keeps the very tokens of plain decoding.
        batch_size: most requests that run side by side.
        speculative_config: the same as a mapping in `drafter`, under the name that vLLM's users know.

    The rest is passed to `load_model`. Wrong values raise `ConfigError` before anything is loaded.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel | None = None,
        drafter: str | DraftConfig | Mapping[str, Any] = "ngram",
        *,
        num_speculative_tokens: int | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        verifier: str | Verifier = "match",
        batch_size: int = 8,
        **load_options: Any,
    ) -> None:
        if speculative_config is not None:
            drafter = parse_draft_config(speculative_config)
        self.config = draft_config(drafter, num_speculative_tokens)
        check_drafter_name(self.config.method)
        rule = make_verifier(verifier) if isinstance(verifier, str) else verifier
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; allowed: 1 or above")
        if isinstance(model, LoadedModel) and load_options:
            raise ConfigError(f"{', '.join(load_options)} cannot change a model that is already loaded")
        self.model = model if isinstance(model, LoadedModel) else load_model(model, **load_options)
        target = Target(self.model.decoder)
        drafter_ = make_drafter(self.config, target)
        controller = FixedController(self.config.num_speculative_tokens, self.config.method)
        self.engine = Engine(StepParts(controller, drafter_, target, rule), batch_size)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self.model.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Result]:
        """Answer one prompt or many, in order. A prompt is plain text, token ids or chat messages.

        Every prompt is checked before any is run.
        """
        return list(self.iterate(prompts, params))

    def iterate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Result]:
        """As `generate`, but each answer as soon as it and those before it are there. Checks all prompts at the call."""
        return self._results(self._requests(split_prompts(prompts), params))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Piece]:
        """Answer one prompt, piece by piece. A reader that goes away frees the request."""
        (request,) = self._requests([prompt], params)
        return self._pieces(request)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary and the context; `ConfigError` says what is wrong."""
        spec = self.model.checkpoint.spec
        needs_tokenizer = isinstance(prompt, str) or any(not isinstance(p, int) for p in prompt)
        token_ids = prompt_ids(prompt, self.tokenizer if needs_tokenizer else None, spec.vocab_size)
        if len(token_ids) >= spec.context_len:
            raise PromptTooLongError(len(token_ids), spec.context_len)
        return token_ids

    def _results(self, requests: Sequence[Request]) -> Iterator[Result]:
        for request in requests:
            self.engine.add(request)
        try:
            for request in requests:
                while not request.is_finished:
                    self.engine.step()
                yield self._result(request)
        finally:
            for request in requests:
                self.engine.abort(request)

    def _pieces(self, request: Request) -> Iterator[Piece]:
        text, num_sent = TextStream(self.tokenizer), 0
        self.engine.add(request)
        try:
            while not request.is_finished:
                self.engine.step()
                new_ids = request.new_ids[num_sent:]
                if new_ids and not request.is_finished:
                    num_sent += len(new_ids)
                    yield Piece(text.push(new_ids), new_ids)
            last_ids = request.new_ids[num_sent:]
            yield Piece(text.push(last_ids) + text.finish(), last_ids, self._result(request))
        finally:
            self.engine.abort(request)

    def _requests(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ConfigError(f"{len(params)} sampling params for {len(prompts)} prompts; give one, or one a prompt")
        spec = self.model.checkpoint.spec
        eos = self.model.checkpoint.eos_token_ids
        return [
            Request(self.encode(prompt), p, context_len=spec.context_len, eos_token_ids=eos)
            for prompt, p in zip(prompts, params, strict=True)
        ]

    def _result(self, request: Request) -> Result:
        new_ids = request.new_ids
        assert request.finish_reason is not None and request.params.seed is not None
        return Result(
            prompt_token_ids=request.token_ids[: request.prompt_len],
            token_ids=new_ids,
            text=self.tokenizer.decode(new_ids) if new_ids else "",
            finish_reason=request.finish_reason,
            seed=request.params.seed,
            stats=request.stats,
        )
