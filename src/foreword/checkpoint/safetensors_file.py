"""One safetensors file: its header read and checked at once, its tensors memory-mapped when asked for.

8 bytes          length of the header, little-endian
header           JSON: tensor name -> dtype, shape, [begin, end) in the data; "__metadata__" -> strings
data             the tensors, one after the other
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.json_file import JSON_ERRORS
from foreword.config import short_repr
from foreword.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

# name in the header -> bytes per value
VALUE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}  # fmt: skip
MAX_HEADER_BYTES = 100_000_000
_MAX_DIMS = 8
_MOST = 2**63 - 1


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the header describes it."""

    dtype: str  # as the format spells it: "F32", "BF16", ...
    shape: tuple[int, ...]
    begin: int  # in the data
    end: int

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.begin


class SafetensorsFile:
    """Header and tensors of one file.

    Raises:
        CheckpointError: the file is not safetensors, is cut short, or its header does not fit its length.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise CheckpointError(
                f"{str(path)!r} is no UTF-8, and the safetensors library reads no file of such a name; rename the file or folder"
            ) from error
        header, data_len = _read_header(path)
        metadata = header.pop("__metadata__", None)
        self.metadata: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
        self.tensors = {name: _parse_entry(path, name, entry) for name, entry in header.items()}
        end = _checked_end(path, self.tensors)
        if end != data_len:
            problem = "is cut short" if end > data_len else "has bytes left over"
            raise CheckpointError(
                f"{path} {problem}: its header describes {end} bytes of tensors, the file holds {data_len}; "
                f"fetch it again"
            )

    def tensor(self, name: str) -> "Tensor":
        """The tensor, memory-mapped for as long as it lives, in the dtype it is stored in."""
        from safetensors import SafetensorError, safe_open

        # Opened anew each time: a mapping that stays would hold in memory all that was ever read of it.
        try:
            with safe_open(self.path, framework="pt") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}; fetch it again") from error


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header and the number of bytes that follow it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path} is not a safetensors file, or it is damaged ({size} bytes); fetch it again")
        if length > size - 8:
            raise CheckpointError(
                f"{path} is cut short: its header alone has {length} bytes, the file {size}; fetch it again"
            )
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except JSON_ERRORS as error:
        raise CheckpointError(f"{path} has a damaged header ({error}); fetch it again") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} has a damaged header (not a table of tensors); fetch it again")
    return header, size - 8 - length


def _parse_entry(path: Path, name: str, entry: Any) -> StoredTensor:
    try:
        begin, end = entry["data_offsets"]
        dtype, shape = entry["dtype"], tuple(entry["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} has a damaged header at tensor {name} ({error!r}); fetch it again") from error
    if not isinstance(dtype, str) or dtype not in VALUE_BYTES:
        raise CheckpointError(
            f"{path} has a damaged header, or is another program's: tensor {name} has dtype {short_repr(dtype)}; "
            f"known: {', '.join(VALUE_BYTES)}"
        )
    numbers = (begin, end, *shape)
    if any(type(number) is not int or not 0 <= number <= _MOST for number in numbers) or len(shape) > _MAX_DIMS:
        raise CheckpointError(
            f"{path} has a damaged header: tensor {name} has shape {short_repr(list(shape))} and data_offsets "
            f"{short_repr([begin, end])}; allowed: whole numbers, 0 or above; fetch it again"
        )
    tensor = StoredTensor(dtype, shape, begin, end)
    if math.prod(shape) * VALUE_BYTES[dtype] != tensor.num_bytes:
        raise CheckpointError(
            f"{path} has a damaged header: tensor {name} of shape {list(tensor.shape)} and dtype {tensor.dtype} "
            f"cannot have {tensor.num_bytes} bytes; fetch it again"
        )
    return tensor


def _checked_end(path: Path, tensors: Mapping[str, StoredTensor]) -> int:
    """Where the last tensor ends; `CheckpointError` unless each begins where the one before it ends."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != end:
            raise CheckpointError(
                f"{path} has a damaged header: tensor {name} begins at byte {tensor.begin} of the data, the one before it "
                f"ends at {end}; fetch it again"
            )
        end = tensor.end
    return end
