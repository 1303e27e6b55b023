"""The conversation of `foreword chat`: questions in, streamed answers out, and the commands between them."""

import re
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol, cast

from foreword.cli.chat.interruption import Interruption
from foreword.cli.output import note
from foreword.engine.llm import LLM
from foreword.engine.result import Piece, Result
from foreword.errors import ForewordError, PromptTooLongError
from foreword.sampling.params import SamplingParams

_COMMAND = re.compile(r"/[a-z]+")
_MAKE_ROOM = "/clear begins a new conversation, /undo takes back the last question and answer"


class Reader(Protocol):
    """Where messages come from."""

    is_terminal: bool

    def read(self) -> str | None:
        """The next one; None at the end."""
        ...


@dataclass
class _Answer:
    """What has come of one answer."""

    text: str = ""
    num_tokens: int = 0
    result: Result | None = None  # None: it was stopped
    start_s: float = 0.0  # of its first token
    num_first: int = 0  # tokens of the first piece: prefill's, so not timed


class Chat:
    """One conversation after another with a model.

    Args:
        llm: answers.
        params: how; without a seed one is drawn for the whole session.
        reader: asks.
        system: what the model is told before anything else.
    """

    def __init__(self, llm: LLM, params: SamplingParams, reader: Reader, system: str | None = None) -> None:
        self.llm, self.params, self.reader = llm, params.with_seed(), reader
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = list(self._opening)
        self._commands: dict[str, tuple[str, Callable[[], None]]] = {
            "/help": ("what can be done here", self._help),
            "/clear": ("begin a new conversation", self._clear),
            "/undo": ("take back the last question and its answer", self._undo),
            "/exit": ("end; so does Ctrl-D", self._exit),
        }
        self._is_over = False

    def run(self) -> None:
        """Until the input ends or /exit."""
        while not self._is_over:
            try:
                text = self.reader.read()
            except KeyboardInterrupt:
                if not self.reader.is_terminal:
                    raise
                note("\n(Ctrl-C stops an answer; Ctrl-D or /exit ends the chat)")
                continue
            if text is None:
                break
            self._take(text)
        if self.reader.is_terminal and not self._is_over:
            note("")

    def _take(self, text: str) -> None:
        """A command, a question, or nothing."""
        word = text.strip()
        if text.startswith("/") and _COMMAND.fullmatch(word):
            if word in self._commands:
                self._commands[word][1]()
            else:
                note(f"unknown command {word}; known: {', '.join(self._commands)}. A space before it sends it as text.")
        elif word:
            self._ask(text)

    def _ask(self, text: str) -> None:
        """Answer a question; whatever goes wrong is one line, and the conversation stays as it was."""
        question = {"role": "user", "content": text}
        try:
            answer = self._stream([*self.messages, question])
        except PromptTooLongError as error:
            note(f"error: {error}; {_MAKE_ROOM}" if self._has_turns else f"error: {error}")
            return
        except ForewordError as error:
            note(f"error: {error}")
            return
        except BrokenPipeError:
            raise
        except Exception as error:  # a fault must not cost the user the conversation
            last = traceback.extract_tb(error.__traceback__)[-1]
            note(f"error: {error!r} at {last.filename}:{last.lineno}: a defect of foreword; the conversation continues")
            return
        if answer.result is None and not answer.text:
            note("stopped before the answer began: the question is taken back")
            return
        self.messages += [question, {"role": "assistant", "content": answer.text}]
        _dim(self._summary(answer))

    def _stream(self, messages: list[dict[str, str]]) -> _Answer:
        """Print an answer while it comes; Ctrl-C ends it."""
        answer = _Answer()
        stream = cast("Generator[Piece]", self.llm.stream(messages, self.params))
        with Interruption() as interruption:
            try:
                for piece in stream:
                    interruption.is_gentle = True
                    self._show(answer, piece)
                    if interruption.is_wanted:
                        break
            except KeyboardInterrupt:
                pass  # what has come stays
            finally:
                stream.close()
                if answer.num_tokens:
                    print(flush=True)
        return answer

    def _show(self, answer: _Answer, piece: Piece) -> None:
        if answer.num_tokens == 0:
            answer.start_s, answer.num_first = time.perf_counter(), len(piece.token_ids)
        answer.text += piece.text
        answer.num_tokens += len(piece.token_ids)
        answer.result = piece.result
        print(piece.text, end="", flush=True)

    def _summary(self, answer: _Answer) -> str:
        """One line: what it cost, what drafting gave, why it ended where it did."""
        result = answer.result
        parts = [f"{answer.num_tokens} tokens"]
        if result is not None:
            speed, per_step = result.stats.decode_tok_per_s, result.stats.tokens_per_step
        else:
            elapsed_s = time.perf_counter() - answer.start_s
            speed, per_step = (answer.num_tokens - answer.num_first) / elapsed_s or None, None
        parts += [] if speed is None else [f"{speed:.1f} tokens/s"]
        parts += [] if per_step is None else [f"{per_step:.2f} tokens per step"]
        parts += [f"drafter {self.llm.config.method}"]
        parts += [] if self.params.warp.is_greedy else [f"seed {self.params.seed}"]
        if result is None:
            parts.append("stopped; the text so far stays in the conversation")
        elif result.finish_reason == "length" and answer.num_tokens >= self.params.max_tokens:
            parts.append(f"cut off at --max-tokens {self.params.max_tokens}")
        elif result.finish_reason == "length":
            parts.append(f"the context is full: {_MAKE_ROOM}")
        return ", ".join(parts)

    @property
    def _has_turns(self) -> bool:
        return len(self.messages) > len(self._opening)

    def _help(self) -> None:
        for name, (what, _) in self._commands.items():
            note(f"  {name:<8}{what}")
        note("  Ctrl-C  stop the answer; the text so far stays in the conversation")
        note("  A backslash at the end of a line continues it in the next one. Pasted lines are one message.")

    def _clear(self) -> None:
        self.messages = list(self._opening)
        note("(a new conversation)")

    def _undo(self) -> None:
        if not self._has_turns:
            note("there is nothing to take back")
            return
        question = self.messages[-2]["content"].partition("\n")[0]
        del self.messages[-2:]
        note(f"(taken back: {question if len(question) <= 60 else question[:57] + '...'})")

    def _exit(self) -> None:
        self._is_over = True


def _dim(text: str) -> None:
    """A line on stderr that keeps in the background."""
    from rich.console import Console

    Console(stderr=True, highlight=False, markup=False).print(text, style="dim", soft_wrap=True)
