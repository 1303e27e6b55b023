"""An answer's text while it grows: what may be shown, and where a stop string cuts it.

The answer stops at the first token after which the text of all its tokens contains a stop string. So it depends on the
tokens alone, not on how many came at once. What is shown is never taken back: the end of the text is held while it
could still become a stop string, or is part of a character.

    text    | ... shown ... | held | not certain yet |
"""

from collections.abc import Sequence

from foreword.checkpoint.text_stream import TextStream


class AnswerText:
    """The text of one answer, fed a token at a time.

    Args:
        stream: decodes its tokens.
        stop: texts that end it; they are cut off.
        min_tokens: a stop string counts only where a later token than the `min_tokens`-th completes it.
        silent_ids: the end tokens, which are no part of the text even where special tokens are shown.
    """

    def __init__(
        self, stream: TextStream, stop: Sequence[str] = (), min_tokens: int = 0, silent_ids: Sequence[int] = ()
    ) -> None:
        self._stream, self._stop, self._min_tokens = stream, tuple(stop), min_tokens
        self._silent_ids = frozenset(silent_ids)
        self._longest = max((len(s) for s in stop), default=0)
        self._certain = ""
        self._num_tokens = 0
        self._floor = 0  # stop strings must end after this many characters
        self._num_shown = 0
        self._is_finished = False
        self.stop_string: str | None = None  # the one that ended it

    def push(self, token_id: int) -> bool:
        """Add a token; True if it completes a stop string, which ends the answer."""
        num_before = len(self._certain)
        self._certain += self._stream.push([] if token_id in self._silent_ids else [token_id])
        self._num_tokens += 1
        if self._num_tokens <= self._min_tokens:
            self._floor = len(self._certain)
            return False
        return bool(self._stop) and self._cut(max(0, num_before - self._longest + 1))

    def show(self) -> str:
        """The text that is new and certain to stay."""
        limit = len(self._certain) - (0 if self._is_finished else self._num_held())
        piece = self._certain[self._num_shown : limit]
        self._num_shown = max(self._num_shown, limit)
        return piece

    def finish(self) -> str:
        """The whole text; no more tokens come."""
        if not self._is_finished:
            self._certain += self._stream.finish()
            self._is_finished = True
        return self._certain

    def _cut(self, start: int) -> bool:
        """Look for stop strings from character `start` on; cut at the one that begins first."""
        text = self._certain + self._stream.pending()
        found: tuple[int, str] | None = None
        for stop in self._stop:
            at = text.find(stop, max(start, self._floor - len(stop) + 1))
            if at >= 0 and (found is None or at < found[0]):
                found = (at, stop)
        if found is not None:
            self._certain, self.stop_string, self._is_finished = text[: found[0]], found[1], True
        return found is not None

    def _num_held(self) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(self._certain)), 0, -1):
            if any(stop.startswith(self._certain[-length:]) for stop in self._stop):
                return length
        return 0
