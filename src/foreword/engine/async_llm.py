"""The interface for servers: everything is awaited, and the event loop never waits for a pass."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Self

from foreword.engine.async_stream import AsyncStream
from foreword.engine.input_processor import PreparedPrompt
from foreword.engine.llm_base import LLMBase
from foreword.engine.prompts import Prompt, split_prompts
from foreword.engine.result import RequestId, Result
from foreword.engine.submission import Answer, Submission, check_timeout
from foreword.sampling.drafting_params import DraftingParams
from foreword.sampling.params import SamplingParams


class AsyncLLM(LLMBase):
    """`LLM` for `asyncio`, with the same arguments and methods. Loading the model blocks: do it before serving.

    All passes run in one thread, which is not the event loop's; tokenizing and compiling grammars happen in a few
    others. Requests of all tasks share the passes. A cancelled task ends its requests.

        async with AsyncLLM("some/model") as llm:
            results = await llm.generate("The capital of France is")
            async for piece in llm.stream("Once upon a time"):
                ...
    """

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        drafting: DraftingParams | Sequence[DraftingParams | None] | None = None,
        request_id: RequestId | Sequence[RequestId] | None = None,
        timeout_s: float | None = None,
    ) -> list[Result]:
        """As `LLM.generate`, with the same arguments and errors."""
        check_timeout(timeout_s)
        prompts = split_prompts(prompts)
        prepared = await self._threads.run(self._prepare, prompts, params, drafting, request_id)
        return await self._threads.run(_results, await self._ended(prepared, timeout_s))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        drafting: DraftingParams | None = None,
        request_id: RequestId | None = None,
        timeout_s: float | None = None,
    ) -> AsyncStream:
        """Pieces of the answers to one prompt, for `async for`; see `LLM.stream`.

        What is wrong with prompt or options is told with the first piece, or by `await stream.start()`.
        """
        check_timeout(timeout_s)
        prepare = partial(self._prepare, [prompt], params, drafting, request_id, streams=True)
        return AsyncStream(prepare, self._loop, self._threads, timeout_s)

    async def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, checked against the vocabulary and the context; `ConfigError` says what is wrong."""
        return await self._threads.run(self._input.encode, prompt)

    async def close(self, *, drain: bool = False) -> None:
        """As `LLM.close`; the event loop is free while the pass under way, or what is drained, ends."""
        await self._threads.run(self._loop.close, drain)
        self._threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ended(self, prompts: Sequence[PreparedPrompt], timeout_s: float | None) -> list[Answer]:
        """The answers in order, once all have ended."""
        events: asyncio.Queue[Answer | Exception] = asyncio.Queue()
        post = partial(asyncio.get_running_loop().call_soon_threadsafe, events.put_nowait)
        submission = Submission(prompts, post, is_blocking=False, timeout_s=timeout_s)
        ended: list[Answer] = []
        try:
            self._loop.submit(submission)
            while len(ended) < submission.num_requests:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                if event.request.error is not None:
                    raise event.request.error
                ended.append(event)
        finally:
            self._loop.drop(submission)
        return sorted(ended, key=lambda answer: answer.place)


def _results(answers: Sequence[Answer]) -> list[Result]:
    return [answer.result() for answer in answers]
