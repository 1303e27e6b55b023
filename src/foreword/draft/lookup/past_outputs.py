"""Answers given before, as a source of drafts: a suffix tree of bounded size, the oldest answer leaving first.

What is remembered can only change how fast an answer comes, never its words. It is off unless asked for, so that a
request's course does not depend on those before it.
"""

import json
import logging
from collections import deque
from pathlib import Path

from foreword.draft.lookup.suffix_tree import SuffixTree, Text
from foreword.errors import ConfigError
from foreword.files import write_whole

logger = logging.getLogger(__name__)


class PastOutputs:
    """The last answers, at most `max_requests` of them and `max_tokens` tokens in all.

    Args:
        max_depth: longest string counted.
        max_requests: answers kept.
        max_tokens: tokens kept; a longer answer is cut at its start. About 250 bytes of memory each.
        vocab_size: of the model whose answers these are.
        file: where answers are read from now and each new one is added to, a line each; None keeps them in memory only.
    """

    def __init__(
        self, max_depth: int, max_requests: int, max_tokens: int, vocab_size: int, file: Path | None = None
    ) -> None:
        self.tree = SuffixTree(max_depth)
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self._texts: deque[Text] = deque()
        self._file: Path | None = None  # nothing is written while reading
        if file is not None:
            self._read(file, vocab_size)
            self._file = file

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, token_ids: list[int]) -> None:
        """Remember an answer, and forget the oldest ones where it does not fit beside them."""
        token_ids = token_ids[-self.max_tokens :]
        if not token_ids:
            return
        text = Text()
        self.tree.extend(text, token_ids)
        text.open_nodes = []  # it will not grow
        self._texts.append(text)
        while len(self._texts) > self.max_requests or self.tree.num_tokens > self.max_tokens:
            self.tree.remove(self._texts.popleft())
        if self._file is not None:
            self._write(self._file, token_ids)

    def _write(self, file: Path, token_ids: list[int]) -> None:
        """Add a line to the file. Where that fails the answer is still good: say so once and write no more."""
        try:
            with file.open("a") as lines:
                lines.write(json.dumps(token_ids, separators=(",", ":")) + "\n")
        except OSError as error:
            logger.warning("past outputs are kept in memory only from now on: %s cannot be written: %s", file, error)
            self._file = None

    def _read(self, file: Path, vocab_size: int) -> None:
        """Take in the newest answers of a file; one that has grown to twice of what is kept is rewritten."""
        lines = _lines(file)
        first = max(0, len(lines) - self.max_requests)
        for number, line in enumerate(lines[first:], first + 1):
            self.add(_parsed(line, f"line {number} of {file}", vocab_size))
        if len(lines) > 2 * max(len(self._texts), 1):
            _rewrite(file, lines[len(lines) - len(self._texts) :])


def _rewrite(file: Path, lines: list[str]) -> None:
    """Let a file hold these lines alone. Where that fails it stays as it is: nothing depends on its being short."""
    try:
        write_whole(file, "".join(line + "\n" for line in lines))
    except OSError as error:
        logger.warning(
            "past outputs in %s are used, but the file cannot be shortened: %s; give it a folder that can be written",
            file,
            error,
        )


def _lines(file: Path) -> list[str]:
    """The lines of a file; none, and a folder for it, where there is no file yet."""
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            return []
        return file.read_bytes().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"suffix_decoding_file {file} is not UTF-8 text ({error}); name another file") from error
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"suffix_decoding_file {file} cannot be used: {reason}; name another file") from error


def _parsed(line: str, where: str, vocab_size: int) -> list[int]:
    try:
        ids = json.loads(line)
    except json.JSONDecodeError:
        ids = None
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise ConfigError(
            f"{where} is {line[:40]!r}; a file of past outputs holds a JSON list of this model's token ids "
            f"(0 to {vocab_size - 1}) a line; name another file, or delete this one"
        )
    return ids
