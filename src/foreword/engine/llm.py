"""For people in a hurry: `LLM().generate("Once upon a time")`."""

import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from foreword.checkpoint.tokenizer import Tokenizer
from foreword.config import STEADY_METHOD, DraftConfig, draft_config
from foreword.draft.registry import check_draft_config, make_drafter
from foreword.engine.async_stream import AsyncStream
from foreword.engine.compatibility import check_pair
from foreword.engine.engine import Engine
from foreword.engine.intake import Intake, PreparedPrompt
from foreword.engine.intake_threads import IntakeThreads
from foreword.engine.kv_budget import kv_budget
from foreword.engine.loop import EngineLoop
from foreword.engine.policy import check_policy, make_controller
from foreword.engine.profile_file import read_profile
from foreword.engine.prompts import Prompt, split_prompts
from foreword.engine.result import Piece, RequestId, Result
from foreword.engine.step import StepParts
from foreword.engine.submission import Answer, Submission, wait_for
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
        prefix_cache: whether a prompt that begins as an earlier or a running one does is read only from there on. The
            tokens are the same; turn it off to measure.
        kv_cache_bytes: most memory for keys and values; requests that find no room wait. Default: three quarters of what
            is free when the model has been loaded, an eighth for those of finished requests.
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
        prefix_cache: bool = True,
        kv_cache_bytes: int | None = None,
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
        check_draft_config(self.config)
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
        drafter_ = make_drafter(replace(self.config, draft_noise=rule.draft_mode.name.lower()), target)
        check_pair(drafter_, rule)
        self._warns_of_reference = self.config.method != "none" and not drafter_.uses_reference
        # Without a drafter nothing is planned, so that not even the tokens that a grammar forces are drafted.
        if self.config.num_speculative_tokens is None:
            self.config = replace(self.config, num_speculative_tokens=drafter_.default_num_nodes)
        num_nodes = 0 if self.config.method == "none" else self.config.num_speculative_tokens or 0
        controller = make_controller(policy if num_nodes else "fixed", target, num_nodes, self.config.method)
        budget = kv_budget(target.decoder, kv_cache_bytes, prefix_cache)
        self.replace_engine(Engine(StepParts(controller, drafter_, target, rule), batch_size, budget))
        self._intake = Intake(self.model.checkpoint)
        self._threads = IntakeThreads()

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
        request_id: RequestId | Sequence[RequestId] | None = None,
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
        request_id: RequestId | Sequence[RequestId] | None = None,
    ) -> Iterator[Result]:
        """As `generate`, but each answer as soon as it and those before it are there."""
        return self._results(self._prepare(split_prompts(prompts), params, drafting, request_id))

    def as_completed(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
        request_id: RequestId | Sequence[RequestId] | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """As `iterate`, but each answer as soon as it is there, with its place in `generate`'s list."""
        return self._completed(self._prepare(split_prompts(prompts), params, drafting, request_id))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        drafting: DraftingParams | None = None,
        request_id: RequestId | None = None,
    ) -> Iterator[Piece]:
        """Answer one prompt, piece by piece. A reader that goes away frees the request.

        No piece ends inside a character or shows the beginning of a stop string. With `n` answers their pieces come in
        turn (`Piece.sample_index`).
        """
        return self._pieces(self._prepare([prompt], params, drafting, request_id, streams=True))

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        drafting: DraftingParams | None = None,
        request_id: RequestId | None = None,
    ) -> AsyncStream:
        """As `stream`, for `async for`. The event loop stays free: also while a prompt is tokenized, and in passes.

        What is wrong with prompt or options is told with the first piece, or by `await stream.start()`.
        """
        prepare = partial(self._prepare, [prompt], params, drafting, request_id, streams=True)
        return AsyncStream(prepare, self._loop, self._threads)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary and the context; `ConfigError` says what is wrong."""
        return self._intake.encode(prompt)

    def abort(self, request_id: RequestId) -> None:
        """End a request between two passes: whoever waits for it gets what there is (`finish_reason` "abort").

        May be called from any thread. An id that is not in use is ignored.
        """
        self._loop.abort(request_id)

    def close(self, *, drain: bool = False) -> None:
        """Take no more requests, end the running ones with `ClosedError` (or let them finish), and free their memory.

        Waits for the pass under way. Whatever is asked afterwards raises `ClosedError`.
        """
        self._loop.close(drain)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """What runs the passes, in a thread of its own: only to be looked at while nothing runs."""
        return self._loop.engine

    def replace_engine(self, engine: Engine, max_queue: int | None = None) -> None:
        """Answer by another engine, for tests and benchmarks."""
        self._loop = EngineLoop(engine, max_queue)
        weakref.finalize(self, self._loop.end).atexit = False

    def _prepare(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None,
        request_ids: RequestId | Sequence[RequestId] | None = None,
        streams: bool = False,
    ) -> list[PreparedPrompt]:
        """Checked and tokenized; says once where a reference is of no use."""
        prepared = self._intake.prepare(prompts, params, drafting, request_ids, streams=streams)
        if self._warns_of_reference and any(p.drafting.enabled and p.drafting.reference for p in prepared):
            self._warns_of_reference = False
            logger.warning(
                "drafter %r makes no use of a reference; ngram and suffix do, alone or in a cascade such as 'ngram,%s'",
                self.config.method,
                self.config.method,
            )
        return prepared

    def _results(self, prompts: Sequence[PreparedPrompt]) -> Iterator[Result]:
        ended: dict[int, Result] = {}
        following = 0
        for place, result in self._completed(prompts):
            ended[place] = result
            while following in ended:
                yield ended.pop(following)
                following += 1

    def _completed(self, prompts: Sequence[PreparedPrompt]) -> Iterator[tuple[int, Result]]:
        events: SimpleQueue[Answer | Exception] = SimpleQueue()
        submission = Submission(prompts, events.put)
        self._loop.submit(submission)
        try:
            for _ in range(submission.num_requests):
                answer = wait_for(events)
                yield answer.place, answer.result()
        finally:
            self._loop.drop(submission)

    def _pieces(self, prompts: Sequence[PreparedPrompt]) -> Iterator[Piece]:
        events: SimpleQueue[Answer | Exception] = SimpleQueue()
        submission = Submission(prompts, events.put, streams=True)
        self._loop.submit(submission)
        try:
            num_open = submission.num_requests
            while num_open:
                piece = wait_for(events).take()
                num_open -= piece.result is not None
                yield piece
        finally:
            self._loop.drop(submission)
