"""Text while it is being made.

The pieces joined are exactly `decode` of all ids. A piece is held back while later tokens could still change it:

- its last character is not whole (it decodes to U+FFFD at the end);
- it ends in a run of byte tokens (<0xE2>...): SentencePiece decoders judge such a run as a whole.

To decode a piece in its context without decoding everything again, each piece is decoded together with the one before.

    ids       | ... emitted ... | context | new |
                                ^_start   ^_read
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

_INCOMPLETE = "\ufffd"


class Decodes(Protocol):
    """What a stream asks of a tokenizer."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        ...

    @property
    def is_byte_fallback(self) -> bool:
        """Whether bytes without a token of their own are tokens like <0xE2>."""
        ...

    def is_byte_token(self, token_id: int) -> bool:
        """Whether it is one of them."""
        ...

    def is_silent(self, token_id: int, skip_special_tokens: bool) -> bool:
        """Whether decoding leaves a token out, so that it does not end a run."""
        ...


class TextStream:
    """Decodes token ids that come a few at a time. One text, one stream."""

    def __init__(self, tokenizer: Decodes, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._start = 0
        self._read = 0

    def push(self, ids: Iterable[int]) -> str:
        """Take in ids; returns the text that is now certain, possibly none."""
        self._ids.extend(ids)
        return "" if self._ends_in_byte_token() else self._take(hold=True)

    def finish(self) -> str:
        """The text that was held back; the last piece."""
        return self._take(hold=False)

    def pending(self) -> str:
        """The text that is held back, as it would read if nothing more came; it may still change."""
        context = self._tokenizer.decode(self._ids[self._start : self._read], self._skip)
        return self._tokenizer.decode(self._ids[self._start :], self._skip)[len(context) :]

    def _take(self, hold: bool) -> str:
        context = self._tokenizer.decode(self._ids[self._start : self._read], self._skip)
        text = self._tokenizer.decode(self._ids[self._start :], self._skip)
        piece = text[len(context) :]
        if not piece or (hold and piece.endswith(_INCOMPLETE)):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return piece

    def _ends_in_byte_token(self) -> bool:
        if not self._tokenizer.is_byte_fallback:
            return False
        silent = self._tokenizer.is_silent
        last = next((token for token in reversed(self._ids[self._read :]) if not silent(token, self._skip)), None)
        return last is not None and self._tokenizer.is_byte_token(last)
