"""One call on its way through the engine's loop: its prompts, its answers, and how its caller is told of them.

caller's thread                      loop's thread
Submission(prompts, post)  ------->  next_answer(): one request at a time, as there is room
events.get()               <-------  post(answer): it has ended, or has something new to read
answer.take()              <-------  answer.look(): what a step brought, kept until it is taken
"""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from foreword.engine.input_processor import PreparedPrompt
from foreword.engine.request import Request
from foreword.engine.result import FinishReason, Piece, RequestId, Result, TokenLogprob
from foreword.engine.result_of import result_of
from foreword.engine.stats import RequestStats
from foreword.errors import ConfigError


class Answer:
    """One request of a call, between the loop's thread, which looks, and its reader, who takes.

    What a slow reader has not taken is one piece that grows, never a queue of them.
    """

    def __init__(self, submission: "Submission", place: int, prompt: PreparedPrompt, request: Request) -> None:
        self.submission, self.place, self.prompt, self.request = submission, place, prompt, request
        self._lock = threading.Lock()  # held for a few lines; no finalizer of ours takes it
        self._text, self._token_ids = "", list[int]()
        self._drafted_by, self._stats = list[str | None](), RequestStats()
        self._logprobs = list[TokenLogprob]()
        self._num_seen = 0  # tokens that the loop has looked at
        self._is_told = False  # the reader has been told of what there is to take
        self._is_ended = False

    def look(self) -> bool:
        """After a step: keep what is new. Whether the reader has to be told of it."""
        request = self.request
        is_ended, num_new = request.is_finished, len(request.token_ids) - request.prompt_len
        if not self.submission.streams or (num_new == self._num_seen and not is_ended):
            return is_ended
        assert request.text is not None, "a streamed request follows its text"
        if is_ended:
            request.text.finish()  # nothing is held back any more
        token_ids, text = request.new_ids[self._num_seen :], request.text.show()
        drafted_by, stats = request.drafted_by[self._num_seen :], request.stats.copy()
        logprobs = request.logprobs[self._num_seen :]
        self._num_seen = num_new
        with self._lock:
            self._text += text
            self._token_ids += token_ids
            self._drafted_by += drafted_by
            self._logprobs += logprobs
            self._stats = stats
            self._is_ended = is_ended
            is_news, self._is_told = not self._is_told, True
        return is_news or (is_ended and self.submission.hears_of_ends)

    def take(self) -> Piece:
        """All that is new since the last time; with the result once the answer has ended. Raises what ended it."""
        with self._lock:
            text, self._text = self._text, ""
            token_ids, self._token_ids = self._token_ids, []
            drafted_by, self._drafted_by = self._drafted_by, []
            logprobs, self._logprobs = self._logprobs, []
            is_ended, self._is_told, stats = self._is_ended, False, self._stats
        result = self.result() if is_ended else None
        sample_index = self.request.sampler.sample_index
        has_logprobs = self.prompt.params.logprobs is not None
        return Piece(
            text,
            token_ids,
            result,
            sample_index,
            self.prompt.request_id,
            drafted_by,
            stats,
            logprobs=logprobs if has_logprobs else None,
        )

    @property
    def is_ended(self) -> bool:
        """Whether the last piece is there to take."""
        return self._is_ended

    def result(self) -> Result:
        """What the caller gets once it has ended; raises the error that ended it before its time."""
        return result_of(self.request, self.prompt.model)


class Submission:
    """The prompts of one call. Requests are made one at a time, by the loop, so that a large call costs little waiting.

    Args:
        prompts: checked and tokenized.
        post: tells the caller, from the loop's thread: an answer that has ended (or, streaming, has news), or the
            error that ended the whole call. It must not block.
        streams: whether the caller reads the answers while they grow.
        hears_of_ends: whether a streaming caller is told that an answer has ended even if it has not taken yet what it
            was told of before.
        is_blocking: whether the caller is a thread that waits, and not an event loop.
        timeout_s: seconds from now on after which what has not ended ends; None for no end.
    """

    def __init__(
        self,
        prompts: Sequence[PreparedPrompt],
        post: Callable[["Answer | Exception"], object],
        *,
        streams: bool = False,
        hears_of_ends: bool = False,
        is_blocking: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        self.prompts, self.post, self.is_blocking = tuple(prompts), post, is_blocking
        self.streams, self.hears_of_ends = streams, hears_of_ends
        self._by_id = {prompt.request_id: prompt for prompt in self.prompts}
        self.num_requests = sum(prompt.params.n for prompt in self.prompts)
        self.num_left = {prompt: prompt.params.n for prompt in self.prompts}  # answers that have not ended
        self.arrived_s = time.perf_counter()
        self.deadline_s = None if timeout_s is None else self.arrived_s + timeout_s
        self.num_made = 0
        self.is_submitted = False  # the loop knows of it
        self._turns = deque(self.prompts)  # whose answers are made next
        self._unmade: dict[PreparedPrompt, range] = {}  # places of the answers that are not made
        place = 0
        for prompt in self.prompts:
            self._unmade[prompt] = range(place, place + prompt.params.n)
            place += prompt.params.n

    def prompt_of(self, request_id: RequestId) -> PreparedPrompt:
        """The prompt that a caller knows by this id."""
        return self._by_id[request_id]

    def next_answer(self) -> Answer | None:
        """The next request that has not been made yet; None where all have."""
        while self._turns:
            prompt = self._turns[0]
            if places := self._unmade[prompt]:
                return self._make(prompt, places)
            self._turns.popleft()
        return None

    def end_unmade(self, reason: FinishReason, prompt: PreparedPrompt | None = None) -> list[Answer]:
        """The answers that have not begun, of one prompt or of all: ended before they began."""
        answers = []
        for one in self.prompts if prompt is None else (prompt,):
            while places := self._unmade[one]:
                answers.append(self._make(one, places))
        for answer in answers:
            answer.request.finish_reason = reason
        return answers

    def _make(self, prompt: PreparedPrompt, places: range) -> Answer:
        """The request of the first of these places, which are those of the prompt's last answers."""
        self._unmade[prompt] = places[1:]
        request = prompt.request(prompt.params.n - len(places))
        request.arrived_s = self.arrived_s
        self.num_made += 1
        return Answer(self, places[0], prompt, request)


def check_timeout(timeout_s: float | None) -> None:
    """`ConfigError` for a time that is none."""
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and 0 < timeout_s < math.inf):
        raise ConfigError(f"timeout_s is {timeout_s!r}; allowed: a number of seconds above 0, or None for no limit")


def wait_for(events: "SimpleQueue[Answer | Exception]") -> Answer:
    """The next answer that a blocked caller is told of; raises what ended the call. Ctrl-C ends the waiting."""
    while True:
        try:
            event = events.get(timeout=_PATIENCE_S)
        except Empty:
            continue
        if isinstance(event, Exception):
            raise event
        return event


# On Windows a thread that waits for a lock hears nothing of Ctrl-C.
_PATIENCE_S = 0.2 if sys.platform == "win32" else None
