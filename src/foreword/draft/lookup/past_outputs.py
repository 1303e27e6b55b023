"""Earlier outputs as a source of drafts: a suffix tree of bounded size, the oldest output leaving first.

What is remembered can only change how fast an output comes, never its tokens. It is off unless asked for, so that a
request's course does not depend on those before it.

A file of them holds a JSON list of token ids per line. Several processes may share it: each line is written at once
and under a lock, and the file is shortened under the same lock. A line that a killed process or a full disk has cut is
told, left out and removed.
"""

import contextlib
import errno
import json
import logging
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from foreword.draft.lookup.suffix_tree import SuffixTree, Text
from foreword.errors import ConfigError
from foreword.files import locked, write_whole

logger = logging.getLogger(__name__)

_CUT = re.compile(r"\[[\d,\s\[\]\0]*|\0+")  # what is left of a list of numbers, be another written behind it


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
        """Add a line to the file. Where that fails the output is still good: say so once and write no more."""
        try:
            with _alone(file):
                _append(file, json.dumps(token_ids, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            logger.warning("past outputs are kept in memory only from now on: %s cannot be written: %s", file, error)
            self._file = None

    def _read(self, file: Path, vocab_size: int) -> None:
        """Take in the newest outputs of a file; one that has grown to twice of what is kept is rewritten."""
        with _usable(file):
            if not file.exists():
                return
        with _usable(file), _alone(file):
            lines, kept = _lines(file), []
            first = max(0, len(lines) - self.max_requests)
            for number, line in enumerate(lines[first:], first + 1):
                ids = _parsed(line, f"line {number} of {file}", vocab_size)
                if ids is not None:
                    self.add(ids)
                    kept.append(line)
            num_cut = len(lines) - first - len(kept)
            if num_cut:
                logger.warning(
                    "%s: %d of its last %d lines are cut short, by a process that was killed or a full disk; they are left out",
                    file,
                    num_cut,
                    len(lines) - first,
                )
            if num_cut or len(lines) > 2 * max(len(self._texts), 1):
                _rewrite(file, kept[len(kept) - len(self._texts) :])


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Hold the right to change the file. Where no lock can be put beside it, it is changed without one."""
    with contextlib.ExitStack() as stack:
        if file.parent.is_dir():  # one that has gone is not made again
            with contextlib.suppress(OSError):
                stack.enter_context(locked(file))
        yield


@contextlib.contextmanager
def _usable(file: Path) -> Iterator[None]:
    """`ConfigError` where a file, or a folder for it, cannot be had."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"suffix_decoding_file {file} cannot be used: {reason}; name another file") from error


def _append(file: Path, line: bytes) -> None:
    """Add a line, all of it or nothing; behind what a cut write has left it begins anew."""
    with file.open("a+b", buffering=0) as raw:
        end = raw.seek(0, 2)
        if end:
            raw.seek(end - 1)
            line = line if raw.read(1) == b"\n" else b"\n" + line
        try:
            if raw.write(line) != len(line):
                raise OSError(errno.ENOSPC, "no space is left for it")
        except OSError:
            raw.truncate(end)
            raise


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
    """The lines of a file, without their ends."""
    try:
        return file.read_bytes().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"suffix_decoding_file {file} is not UTF-8 text ({error}); name another file") from error


def _parsed(line: str, where: str, vocab_size: int) -> list[int] | None:
    """The token ids of a line; None for one that was cut."""
    try:
        ids = json.loads(line)
    except (ValueError, RecursionError):
        if _CUT.fullmatch(line):
            return None
        ids = None
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise ConfigError(
            f"{where} is {line[:40]!r}; a file of past outputs holds a JSON list of this model's token ids "
            f"(0 to {vocab_size - 1}) per line; name another file, or delete this one"
        )
    return ids
