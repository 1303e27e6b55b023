"""A GGUF's weights as a safetensors file in the cache: converted once, memory-mapped afterwards.

    cache/converted/<sha256 of the GGUF>-<dtype>-v1.safetensors

Tensors have canonical names. The file is written tensor by tensor, so a conversion needs the memory of one tensor, and
appears under its name only when it is whole.
"""

import json
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from foreword.cache_folder import cannot_use
from foreword.checkpoint.name_map import expected_shapes
from foreword.checkpoint.safetensors_file import SafetensorsFile
from foreword.checkpoint.weights import Weights
from foreword.config import TORCH_DTYPES, ModelSpec
from foreword.errors import CheckpointError, ConfigError
from foreword.files import locked, sweep_folder, sweep_parts
from foreword.progress import Report
from foreword.seal import check_sealed, discard, sealed_file

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

_STORED = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}
# Raised when the conversion itself changes, so that files of an older one are not taken for the new.
_VERSION = 1


class Quantised(Weights, Protocol):
    """What is converted."""

    source: str
    spec: ModelSpec

    @property
    def row_order(self) -> str:
        """What its family says of the order of rows, for the names of files that are made from it."""
        ...


class ConvertedWeights:
    """Tensors of a converted file: a `WeightSource`."""

    def __init__(self, path: Path, fingerprint: str, spec: ModelSpec) -> None:
        self.path = path
        check_sealed(path, fingerprint)
        self._file = SafetensorsFile(path)
        if {name: tensor.shape for name, tensor in self._file.tensors.items()} != expected_shapes(spec):
            raise CheckpointError(f"{path} holds other tensors than the model has")
        self._fingerprint = fingerprint

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the GGUF that this was made from."""
        return self._fingerprint

    def has_tensor(self, name: str) -> bool:
        """Whether the model has the tensor of this canonical name."""
        return name in self._file.tensors

    def tensor(self, name: str) -> "Tensor":
        """The tensor, memory-mapped."""
        return self._file.tensor(name)


def converted(model: Quantised, dtype: str, cache: Path, report: Report) -> Weights:
    """The model's weights in `dtype`, from the cache; converted first where they are not there yet.

    Where the cache cannot be written the model itself is returned, which dequantises at every load.

    Raises:
        ConfigError: `dtype` is not float32 or bfloat16.
    """
    if dtype not in _STORED:
        raise ConfigError(f"weights cannot be converted to {dtype!r}; allowed: {', '.join(TORCH_DTYPES)}")
    path = cache / "converted" / f"{model.fingerprint[:32]}{model.row_order}-{dtype}-v{_VERSION}.safetensors"
    try:
        if (found := _open_if_whole(path, model)) is not None:
            return found
        with locked(path):
            found = _open_if_whole(path, model)  # another process may have made it meanwhile
            if found is None:
                sweep_parts(path)
                sweep_folder(path.parent)
                _convert(model, dtype, path, report)
                found = _open_if_whole(path, model)
            return found or model
    except CheckpointError:
        raise
    except OSError as error:
        cannot_use(cache, error)
        return model


def _open_if_whole(path: Path, model: Quantised) -> ConvertedWeights | None:
    """None where there is nothing, or nothing that can be used: that is removed, so that it is told once."""
    if not path.is_file():
        return None
    try:
        return ConvertedWeights(path, model.fingerprint, model.spec)
    except CheckpointError as error:
        logger.warning("converting again: %s", error)
        discard(path)
        return None


def _convert(model: Quantised, dtype: str, path: Path, report: Report) -> None:
    stored, value_bytes = _STORED[dtype]
    shapes = expected_shapes(model.spec)
    header: dict[str, object] = {"__metadata__": {"fingerprint": model.fingerprint, "format": "pt"}}
    begin = 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape) * value_bytes
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    total, done = begin, 0
    raw_header = json.dumps(header).encode()
    raw_header += b" " * (-(8 + len(raw_header)) % 64)  # tensors begin aligned
    with sealed_file(path, model.fingerprint) as file:
        file.write(len(raw_header).to_bytes(8, "little") + raw_header)
        file.end_piece()
        for name in shapes:
            done += file.write(_raw(model.tensor(name), dtype))
            report(f"converting to {dtype}", done, total)


def _raw(tensor: "Tensor", dtype: str) -> bytes:
    import torch

    cast = tensor.to(getattr(torch, dtype)).contiguous().flatten()
    return cast.view(torch.uint8).numpy().tobytes()
