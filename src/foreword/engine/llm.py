"""The blocking interface: `LLM().generate("Once upon a time")`."""

from collections.abc import Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Self

from foreword.engine.async_stream import AsyncStream
from foreword.engine.input_processor import PreparedPrompt
from foreword.engine.llm_base import LLMBase
from foreword.engine.prompts import Prompt, split_prompts
from foreword.engine.result import Piece, RequestId, Result
from foreword.engine.submission import Answer, Submission, check_timeout, wait_for
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams
from foreword.target.load_model import LoadedModel, load_model


class LLM(LLMBase):  # noqa: D101
    __doc__ = LLMBase.__doc__

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
        request_id: RequestId | Sequence[RequestId] | None = None,
        timeout_s: float | None = None,
    ) -> list[Result]:
        """Answer one prompt or many, in order. A prompt is plain text, token ids or chat messages.

        Every prompt is checked before any is run. With `n` answers per prompt, those of a prompt follow each other
        (`Result.sample_index`). Safe to call from several threads: their requests share the passes.

        Args:
            prompts: one or many.
            params: one for all prompts, or one per prompt.
            drafting: likewise; these change how fast an answer comes, never its tokens.
            request_id: a name per prompt for `abort`; made where none is given. The `n` answers of a prompt share it.
            timeout_s: seconds from this call on, waiting included, after which what has not ended ends with
                `finish_reason` "timeout" and the tokens that are there.

        Raises:
            ConfigError: a prompt or an option is wrong (`PromptTooLongError`: does not fit the context).
            QueueFullError: more than `max_queue` calls wait.
            CapacityError: it does not fit in memory.
            ClosedError: the LLM is closed.
        """
        return list(self.iterate(prompts, params, drafting=drafting, request_id=request_id, timeout_s=timeout_s))

    def iterate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
        request_id: RequestId | Sequence[RequestId] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Result]:
        """As `generate`, but yields each answer as soon as it and those before it are finished."""
        check_timeout(timeout_s)
        return self._in_order(self._prepare(split_prompts(prompts), params, drafting, request_id), timeout_s)

    def as_completed(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
        request_id: RequestId | Sequence[RequestId] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """As `iterate`, but yields each answer as soon as it is finished, with its index in `generate`'s list."""
        check_timeout(timeout_s)
        return self._completed(self._prepare(split_prompts(prompts), params, drafting, request_id), timeout_s)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        drafting: DraftingParams | None = None,
        request_id: RequestId | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Piece]:
        """Answer one prompt, piece by piece. Closing the iterator ends the request; a slow reader gets larger pieces.

        No piece ends inside a character or contains the beginning of a stop string. With `n` answers their pieces come in
        turn (`Piece.sample_index`). The request begins with the first piece that is asked for, and so does `timeout_s`.
        """
        check_timeout(timeout_s)
        return self._pieces(self._prepare([prompt], params, drafting, request_id, streams=True), timeout_s)

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        drafting: DraftingParams | None = None,
        request_id: RequestId | None = None,
        timeout_s: float | None = None,
    ) -> AsyncStream:
        """As `stream`, for `async for`. The event loop stays free: also while a prompt is tokenized, and in passes.

        What is wrong with prompt or options is told with the first piece, or by `await stream.start()`.
        """
        check_timeout(timeout_s)
        prepare = partial(self._prepare, [prompt], params, drafting, request_id, streams=True)
        return AsyncStream(prepare, self._loop, self._threads, timeout_s)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary and the context; `ConfigError` says what is wrong."""
        return self._input.encode(prompt)

    def close(self, *, drain: bool = False) -> None:
        """Take no more requests, end the running ones with `ClosedError` (or let them finish), and free their memory.

        Waits for the pass under way. Whatever is asked afterwards raises `ClosedError`. The end of a `with` block, of
        the program, or of the last reference to the `LLM` closes it too.
        """
        self._loop.close(drain)
        self._threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_order(self, prompts: Sequence[PreparedPrompt], timeout_s: float | None) -> Iterator[Result]:
        ended: dict[int, Result] = {}
        following = 0
        for place, result in self._completed(prompts, timeout_s):
            ended[place] = result
            while following in ended:
                yield ended.pop(following)
                following += 1

    def _completed(self, prompts: Sequence[PreparedPrompt], timeout_s: float | None) -> Iterator[tuple[int, Result]]:
        events: SimpleQueue[Answer | Exception] = SimpleQueue()
        submission = Submission(prompts, events.put, timeout_s=timeout_s)
        try:  # from here on, so that Ctrl-C right after it ends the requests too
            self._loop.submit(submission)
            for _ in range(submission.num_requests):
                answer = wait_for(events)
                yield answer.place, answer.result()
        finally:
            self._loop.drop(submission)

    def _pieces(self, prompts: Sequence[PreparedPrompt], timeout_s: float | None) -> Iterator[Piece]:
        events: SimpleQueue[Answer | Exception] = SimpleQueue()
        submission = Submission(prompts, events.put, streams=True, timeout_s=timeout_s)
        try:
            self._loop.submit(submission)
            num_open = submission.num_requests
            while num_open:
                piece = wait_for(events).take()
                num_open -= piece.result is not None
                yield piece
        finally:
            self._loop.drop(submission)


__all__ = ["LLM", "LoadedModel", "load_model"]
