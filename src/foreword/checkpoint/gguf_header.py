"""The header of a GGUF file: metadata, and where each tensor lies. Nothing else of the file is read.

    "GGUF"  version  number of tensors  number of metadata entries
    metadata        key, type, value
    tensor table    name, dimensions (innermost first), type, offset in the data
    padding, then the data

The `gguf` library reads the same, but importing it and walking the vocabulary with it takes longer than all else that
opening a model needs; it is used where it is irreplaceable, to dequantise. Lists of strings stay in the file until they
are asked for, because vocabularies are long.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.config import short_repr
from foreword.errors import CheckpointError, UnsupportedModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 16

# type number -> (name, values a block, bytes a block), as ggml defines them
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as the table describes it."""

    name: str
    type_name: str
    shape: tuple[int, ...]  # outermost first: (out, in)
    begin: int  # byte in the file
    num_bytes: int


@dataclass(frozen=True)
class StringList:
    """Strings that are still in the file."""

    _buffer: mmap.mmap
    _begin: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        buffer, position, length = self._buffer, self._begin, struct.Struct("<Q").unpack_from
        for _ in range(self.count):
            (size,) = length(buffer, position)
            position += 8 + size
            yield buffer[position - size : position].decode("utf-8", errors="replace")


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key and tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check the header.

    Raises:
        CheckpointError: not a GGUF file, cut short anywhere, or damaged.
        UnsupportedModelError: a version, byte order or tensor type that foreword does not read.
    """
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise CheckpointError(
                f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()!r}; fetch it again"
            )
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(path, buffer)
    version = cursor.take("I")
    if version & 0xFFFF == 0:
        raise UnsupportedModelError(f"{path} is a big-endian GGUF file; supported: little-endian")
    if version not in VERSIONS:
        raise UnsupportedModelError(f"{path} is GGUF version {version}; supported: {', '.join(map(str, VERSIONS))}")
    num_tensors, num_entries = cursor.take("Q"), cursor.take("Q")
    metadata: dict[str, Any] = {}
    for _ in range(cursor.checked(num_entries, 12)):
        key = cursor.string()
        if key in metadata:
            raise CheckpointError(f"{path} is damaged: it has two entries {short_repr(key)}; fetch it again")
        metadata[key] = cursor.value(cursor.take("I"))
    table = [cursor.tensor_entry() for _ in range(cursor.checked(num_tensors, 24))]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= _MAX_ALIGNMENT or alignment.bit_count() != 1:
        raise CheckpointError(f"{path} is damaged: its alignment is {short_repr(alignment)}; fetch it again")
    return GgufHeader(metadata, _placed(path, table, cursor.position, alignment, len(buffer)))


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _placed(
    path: Path, table: list[tuple[str, tuple[int, ...], int, int]], header_end: int, alignment: int, file_size: int
) -> dict[str, GgufTensor]:
    """By name; each tensor begins where the one before it ends, but for the padding, as ggml asks for too."""
    data_begin = _padded(header_end, alignment)
    tensors: dict[str, GgufTensor] = {}
    expected = data_begin
    for entry in table:
        tensor = _place(path, entry, data_begin, file_size)
        if tensor.name in tensors:
            raise CheckpointError(f"{path} is damaged: it has two tensors {tensor.name!r}; fetch it again")
        if tensor.begin != expected:
            raise CheckpointError(
                f"{path} is damaged: tensor {tensor.name!r} begins at byte {tensor.begin}, the one before it ends at "
                f"{expected}; fetch it again"
            )
        expected += _padded(tensor.num_bytes, alignment)
        tensors[tensor.name] = tensor
    return tensors


class _Cursor:
    """Reads values one after the other; running over the end of the file is a CheckpointError."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self._path = path
        self._buffer = buffer
        self.position = len(MAGIC)

    def cut(self) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is cut short or damaged: its header does not end within its {len(self._buffer)} bytes; "
            f"fetch it again"
        )

    def checked(self, count: int, least_bytes: int) -> int:
        """`count`, if so many things of at least so many bytes can still follow."""
        if count * least_bytes > len(self._buffer) - self.position:
            raise self.cut()
        return count

    def take(self, code: str) -> Any:
        return self.take_many(code, 1)[0]

    def take_many(self, code: str, count: int) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{self.checked(count, struct.calcsize('<' + code))}{code}")
        values = layout.unpack_from(self._buffer, self.position)
        self.position += layout.size
        return values

    def string(self) -> str:
        size = self.checked(self.take("Q"), 1)
        self.position += size
        return self._buffer[self.position - size : self.position].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise CheckpointError(f"{self._path} is damaged: metadata of unknown type {kind}; fetch it again")
        return self.take(_SCALARS[kind])

    def array(self) -> Any:
        kind, count = self.take("I"), self.take("Q")
        if kind == _STRING:
            return self._strings(self.checked(count, 8))
        if kind in _SCALARS:
            return self.take_many(_SCALARS[kind], count)
        raise CheckpointError(f"{self._path} is damaged: a list of values of type {kind}; fetch it again")

    def _strings(self, count: int) -> StringList:
        begin, length = self.position, struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                self.position += 8 + length(self._buffer, self.position)[0]
        except (struct.error, OverflowError) as error:
            raise self.cut() from error
        if self.position > len(self._buffer):
            raise self.cut()
        return StringList(self._buffer, begin, count)

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dims = self.string(), self.take("I")
        if num_dims > _MAX_DIMS:
            raise CheckpointError(f"{self._path} is damaged: tensor {name!r} has {num_dims} dimensions; fetch it again")
        dims = self.take_many("Q", num_dims)
        return name, tuple(reversed(dims)), self.take("I"), self.take("Q")


def _place(path: Path, entry: tuple[str, tuple[int, ...], int, int], data_begin: int, file_size: int) -> GgufTensor:
    name, shape, type_number, offset = entry
    if type_number not in TENSOR_TYPES:
        known = ", ".join(type_name for type_name, _, _ in TENSOR_TYPES.values())
        raise UnsupportedModelError(
            f"{path}: tensor {name} has type number {type_number}, which is unknown here; known: {known}"
        )
    type_name, block, block_bytes = TENSOR_TYPES[type_number]
    row_len = shape[-1] if shape else 1
    if row_len % block:
        raise CheckpointError(
            f"{path} is damaged: rows of {row_len} values in tensor {name} are no whole number of {type_name} blocks "
            f"of {block}; fetch it again"
        )
    count = 1
    for size in shape:
        count *= size
    num_bytes = count // block * block_bytes
    if data_begin + offset + num_bytes > file_size:
        raise CheckpointError(
            f"{path} is cut short: tensor {name} ends at byte {data_begin + offset + num_bytes}, the file has "
            f"{file_size}; fetch it again"
        )
    return GgufTensor(name, type_name, shape, data_begin + offset, num_bytes)
