"""Prefixes on the disk: the keys and values of 64 tokens a file, found by all tokens up to its end.

    <digest>.rows     magic, version, digest, number of bytes, rows, CRC-32 of all that

The digest is the SHA-256 of the key (model, weights, runtime, formats: all that rows depend on) and of the tokens. So a
lookup needs no index: a prompt names the files that hold its beginning, one after the other. Prompts that begin alike
share files, a conversation that goes on adds some, and two processes that write the same file write the same bytes.
"""

import hashlib
import json
import logging
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from foreword.engine.block_folder import BlockFolder
from foreword.runtime.base import ROW_GROUP, SavableCache
from foreword.target.load_model import LoadedModel

logger = logging.getLogger(__name__)

STORED_ROWS = 64  # of a file
assert STORED_ROWS % ROW_GROUP == 0
_NAMES = r"[0-9a-f]{64}\.rows"
_VERSION = 1  # of the files, and of what foreword's own code computes: raise it where either changes
_MAGIC = b"fwprefix"
_HEAD = struct.Struct("<8sI32sQ")
_SUM = struct.Struct("<I")


class PrefixStore:
    """The files of one model.

    Args:
        folder: where they are.
        key: what rows depend on beside the tokens.
        num_bytes: of the rows of a file.
        max_bytes: most bytes of the whole folder, other models' files included.
    """

    def __init__(self, folder: Path, key: bytes, num_bytes: int, max_bytes: int) -> None:
        self._key, self._num_bytes = key, num_bytes
        self._files = BlockFolder(folder, _NAMES, max_bytes)
        self._has_told = False

    def digests(self, token_ids: Sequence[int], num_tokens: int) -> list[bytes]:
        """Of each whole block of the first `num_tokens` tokens: of all tokens up to its end."""
        blocks = np.array(token_ids[: num_tokens // STORED_ROWS * STORED_ROWS], dtype="<i4").reshape(-1, STORED_ROWS)
        digest, found = hashlib.sha256(self._key), []
        for block in blocks:
            digest.update(block.tobytes())
            found.append(digest.digest())
        return found

    def has(self, digest: bytes) -> bool:
        """Whether there is a file of this name."""
        return self._files.has(_name(digest))

    def read(self, digests: Sequence[bytes], block: int, used_ns: int) -> UInt8[np.ndarray, " bytes"] | None:
        """The rows of a block; None where they are not there, or damaged.

        A damaged file is said once, and removed with those that go on from it: they are written anew.
        """
        name = _name(digests[block])
        data = self._files.read(name, _HEAD.size + self._num_bytes + _SUM.size)
        if data is None:
            return None
        if not self._is_whole(data, digests[block]):
            for later in digests[block:]:
                self._files.remove(_name(later))
            if not self._has_told:
                self._has_told = True
                logger.warning(
                    "%s is damaged, or not what its name says: it was removed and its tokens are read again",
                    self._files.folder / name,
                )
            return None
        self._files.use(name, used_ns, block)
        return np.frombuffer(data, np.uint8, self._num_bytes, _HEAD.size)

    def use(self, digests: Sequence[bytes], block: int, used_ns: int) -> bool:
        """Note that a block was used; False where it is not there."""
        return self._files.use(_name(digests[block]), used_ns, block)

    def write(self, digests: Sequence[bytes], block: int, used_ns: int, rows: UInt8[np.ndarray, " bytes"]) -> bool:
        """Write a block; False where that cannot be done."""
        head = self._head(digests[block])
        checksum = _SUM.pack(zlib.crc32(rows.data, zlib.crc32(head)))
        return self._files.write(_name(digests[block]), [head, rows.data, checksum], used_ns, block)

    @property
    def most_blocks(self) -> int:
        """Of one prefix: three quarters of what the folder may hold, so that a prefix never pushes out its own beginning."""
        return self._files.max_bytes * 3 // 4 // (_HEAD.size + self._num_bytes + _SUM.size)

    @property
    def is_writable(self) -> bool:
        """False after a file could not be written."""
        return self._files.is_writable

    @property
    def num_bytes(self) -> int:
        """Of all files, as of the last look."""
        return self._files.num_bytes

    def _head(self, digest: bytes) -> bytes:
        return _HEAD.pack(_MAGIC, _VERSION, digest, self._num_bytes)

    def _is_whole(self, data: bytes, digest: bytes) -> bool:
        body = memoryview(data)[: -_SUM.size]
        return (
            len(data) == _HEAD.size + self._num_bytes + _SUM.size
            and data.startswith(self._head(digest))
            and zlib.crc32(body) == _SUM.unpack_from(data, len(body))[0]
        )


def store_key(model: LoadedModel, cache: SavableCache) -> bytes | None:
    """What the rows of a model's cache depend on beside the tokens; None where its weights have no fingerprint."""
    source = model.checkpoint
    fingerprint = getattr(source, "fingerprint", None)  # a model from elsewhere has none
    if fingerprint is None:
        return None
    choice = model.choice
    facts = [
        _VERSION,
        _foreword_version(),
        fingerprint,
        getattr(source, "row_order", ""),
        asdict(model.decoder.spec),
        choice.name,
        choice.dtype,
        choice.kv_dtype,
        cache.layout,
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


def _foreword_version() -> str:
    try:
        return version("foreword")
    except PackageNotFoundError:
        return ""


def _name(digest: bytes) -> str:
    return f"{digest.hex()}.rows"
