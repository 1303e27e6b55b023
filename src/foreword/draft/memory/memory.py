"""What an engine remembers of its answers: the store and the mixer, and, where asked, a file that keeps both.

The file is written when the engine is closed, and while it runs at most once a minute, by a thread of its own on a copy. A
process that is killed loses what it has learned since.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import final

import numpy as np
from jaxtyping import Float

from foreword.draft.memory.memory_file import Forgotten, MemoryFile, Rows
from foreword.draft.memory.mixer import Mixer
from foreword.draft.memory.store import MemoryStore, merged

logger = logging.getLogger(__name__)

_SAVE_EVERY_S = 60.0


@final
class Memory:
    """Learned by one thread; a file is written by another.

    Args:
        num_bytes: of the store; a file that is there has its own size.
        vocab_size: of the model.
        file: where it is kept; None keeps it in this process only.
    """

    def __init__(self, num_bytes: int, vocab_size: int, file: MemoryFile | None = None) -> None:
        self.store, self.mixer, self._file = MemoryStore(num_bytes, vocab_size), Mixer(), file
        self._saving: threading.Thread | None = None
        self._news: Rows | None = None  # of another process, for the thread that learns
        self._is_forgotten = False  # told to it likewise
        self._is_changed = False
        self._saved_s = time.monotonic()
        if file is not None and (kept := file.load()) is not None:
            self._begin_with(kept.rows, kept.mixer, vocab_size, file)

    def learn(self, token_ids: Sequence[int], first: int) -> None:
        """Take in the tokens of a text from place `first` on."""
        if first < len(token_ids):
            self.store.learn(token_ids, first)
            self._is_changed = True

    def keep(self) -> None:
        """Between two requests: take in what other processes have learned, and write now and then."""
        if self._file is None or (self._saving is not None and self._saving.is_alive()):
            return
        self._take_news()
        if self._is_changed and time.monotonic() - self._saved_s > _SAVE_EVERY_S:
            rows, mixer = self.store.rows.copy(), self.mixer.state
            self._is_changed, self._saved_s = False, time.monotonic()
            self._saving = threading.Thread(target=self._save, args=(rows, mixer), name="foreword-memory")
            self._saving.start()

    def close(self) -> None:
        """Write what is not written yet."""
        if self._saving is not None:
            self._saving.join()
        self._take_news()
        if self._is_changed:
            self._is_changed = False
            self._save(self.store.rows, self.mixer.state)
        self._take_news()

    def _begin_with(self, rows: Rows, mixer: Float[np.ndarray, " numbers"], vocab_size: int, file: MemoryFile) -> None:
        if rows.nbytes != self.store.rows.nbytes:
            logger.warning(
                "the memory %s has %d bytes and keeps them; 'foreword forget' erases it, for one of %d",
                file.path,
                rows.nbytes,
                self.store.rows.nbytes,
            )
            self.store = MemoryStore(rows.nbytes, vocab_size)
        self.store.rows[:] = rows
        try:
            self.mixer.state = mixer
        except ValueError as error:
            logger.warning("the weights in the memory %s are not used: %s", file.path, error)

    def _save(self, rows: Rows, mixer: Float[np.ndarray, " numbers"]) -> None:
        """What fails here is no reason to lose an answer: say so once and write no more."""
        if self._file is None:
            return
        try:
            self._news = self._file.save(rows, mixer)
        except Forgotten:
            self._is_forgotten = True
        except Exception as error:
            logger.warning(
                "the memory is kept in this process only from now on: %s cannot be written: %s", self._file.path, error
            )
            self._file = None

    def _take_news(self) -> None:
        if self._is_forgotten:
            self.store.clear()
            self.mixer = Mixer()
            self._is_changed = False
        elif self._news is not None:
            self.store.rows[:] = merged(self.store.rows, self._news)
        self._news, self._is_forgotten = None, False
