"""The prefix cache's second level: rows of finished requests go to the disk, and come back after a restart.

    load    for a request whose prompt goes on in a file where the memory's rows end: some blocks between two passes,
            so that no running request waits for more than that; it takes part in passes once it has all
    save    a block at a time: while nothing runs, between two looks at the engine's notes; while requests run, in a small
            share of the time; at the end of the engine, what is left

Everything happens in the engine's thread. Nothing is copied twice, and there is no second thread to end or to fork.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from foreword.engine.prefix_cache import Region
from foreword.engine.prefix_store import STORED_ROWS, PrefixStore, store_key
from foreword.engine.request import Request
from foreword.errors import CapacityError, ConfigError
from foreword.runtime.base import KVCache, SavableCache
from foreword.target.load_model import LoadedModel

logger = logging.getLogger(__name__)

PROMPT_CACHE_BYTES = 8 << 30  # the default bound of the folder
_LOADED_BLOCKS = 8  # between two passes: as many tokens as a pass reads of prompts
_BUSY_SHARE = 50  # while requests run, saving takes at most one part of so many of the time
_MOST_CLOSING_S = 20.0  # for what is left at the end


@dataclass(frozen=True, eq=False)
class _Prefix:
    """The blocks of a text, and when it was used."""

    digests: list[bytes]
    used_ns: int


class DiskPrefixes:
    """Loads and saves rows of one cache.

    Args:
        cache: the target's.
        store: its files.
        now_s: the source of time.
    """

    def __init__(self, cache: SavableCache, store: PrefixStore, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._cache, self.store, self._now_s = cache, store, now_s
        self._loading: dict[Request, _Prefix] = {}
        self._saving: tuple[Region, _Prefix] | None = None
        self._next_s = 0.0  # when saving may go on while requests run
        self.num_loaded = self.num_saved = 0  # tokens

    def look(self, request: Request) -> None:
        """A request was given a region: whether files go on where its rows end."""
        limit = len(request.token_ids) - 1  # the last token is always read: the next one is drawn after it
        digests = self.store.digests(request.token_ids, limit)
        block = request.kv_len // STORED_ROWS
        if block < len(digests) and self.store.has(digests[block]):
            self._loading[request] = _Prefix(digests, time.time_ns())

    def is_loading(self, request: Request) -> bool:
        """Whether there may be more of its prompt on the disk."""
        return request in self._loading

    def forget(self, request: Request) -> None:
        """Its region is taken away."""
        self._loading.pop(request, None)

    def load(self, request: Request, reserve: Callable[[int, int], None]) -> None:
        """Load some blocks behind the whole blocks that a request holds. `reserve` makes room in its region."""
        prefix = self._loading[request]
        for _ in range(_LOADED_BLOCKS):
            if not self._load_block(request, prefix, reserve):
                del self._loading[request]
                return

    def _load_block(self, request: Request, prefix: _Prefix, reserve: Callable[[int, int], None]) -> bool:
        block = request.kv_len // STORED_ROWS
        if block >= len(prefix.digests):
            return False
        first = block * STORED_ROWS
        try:
            rows = self.store.read(prefix.digests, block, prefix.used_ns)
            if rows is None:
                return False
            reserve(request.slot, first + STORED_ROWS)
        except (CapacityError, MemoryError):
            return False
        self._cache.truncate(request.slot, first)
        self._cache.load_rows(request.slot, rows)
        self.num_loaded += first + STORED_ROWS - request.kv_len
        request.kv_len = first + STORED_ROWS
        return True

    def save(self, regions: Iterable[Region], *, is_idle: bool) -> bool:
        """Write one block of those regions of finished requests that have some left; False where none was written.

        `is_idle`: nothing runs. Otherwise nothing is written before the last write is a small part of the time since.
        """
        if not self.store.is_writable or (not is_idle and self._now_s() < self._next_s):
            return False
        region = next((region for region in regions if not region.is_saved), None)
        if region is None:
            return False
        begin_s = self._now_s()
        try:
            self._save_block(region)
        except MemoryError:
            return False
        end_s = self._now_s()
        self._next_s = end_s + (end_s - begin_s) * _BUSY_SHARE
        return True

    def finish(self, regions: Iterable[Region]) -> None:
        """Write what is left, as far as there is time."""
        regions, end_s = list(regions), self._now_s() + _MOST_CLOSING_S
        while self._now_s() < end_s and self.save(regions, is_idle=True):
            pass

    def _save_block(self, region: Region) -> None:
        """Write the next block of a region that is not on the disk yet."""
        if self._saving is None or self._saving[0] is not region:
            digests = self.store.digests(region.token_ids, region.num_held)[: self.store.most_blocks]
            self._saving = region, _Prefix(digests, region.used_ns)
        prefix = self._saving[1]
        while region.num_saved < len(prefix.digests):
            block = region.num_saved
            region.num_saved += 1
            if not self.store.use(prefix.digests, block, prefix.used_ns):
                rows = self._cache.save_rows(region.slot, block * STORED_ROWS, STORED_ROWS)
                self.num_saved += STORED_ROWS * self.store.write(prefix.digests, block, prefix.used_ns, rows)
                break
        region.is_saved = region.num_saved >= len(prefix.digests)
        if region.is_saved:
            self._saving = None


def open_disk(model: LoadedModel, cache: KVCache, folder: Path, max_bytes: int) -> DiskPrefixes | None:
    """The second level in a folder; None, and a warning, where a model's rows cannot be kept.

    Raises:
        ConfigError: `max_bytes` has no room for two blocks.
    """
    key = store_key(model, cache) if isinstance(cache, SavableCache) else None
    if key is None or not isinstance(cache, SavableCache):
        logger.warning("prompt_cache %s is not used: models that transformers computes have no rows to keep", folder)
        return None
    num_bytes = cache.region_bytes(STORED_ROWS)
    store = PrefixStore(folder, key, num_bytes, max_bytes)
    if store.most_blocks < 1:
        raise ConfigError(
            f"prompt_cache_bytes is {max_bytes}, and {STORED_ROWS} tokens of this model take {num_bytes}; "
            f"allowed: at least {2 * num_bytes + 1024}, or no prompt_cache"
        )
    logger.info("prompt cache %s: %.0f of %.0f MiB", folder, store.num_bytes / 2**20, max_bytes / 2**20)
    return DiskPrefixes(cache, store)
