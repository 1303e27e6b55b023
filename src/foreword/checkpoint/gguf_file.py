"""A GGUF file: one file with weights, tokenizer and chat template."""

import math
import struct
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.cache import sha256_of
from foreword.checkpoint.families import FAMILIES
from foreword.checkpoint.file_tensors import FileTensors, row_order
from foreword.checkpoint.gguf_header import TENSOR_TYPES, GgufTensor, read_gguf_header
from foreword.checkpoint.gguf_spec import (
    LONG_FACTORS,
    ROPE_FREQS,
    SHORT_FACTORS,
    architecture_of,
    options_of,
    spec_from_gguf,
    with_divisors,
    with_rope_freqs,
)
from foreword.checkpoint.hf_config import usable_ends
from foreword.checkpoint.inventory import check_inventory
from foreword.checkpoint.name_map import GGUF_IGNORED, GGUF_NAMES
from foreword.checkpoint.weights import Weights
from foreword.errors import CheckpointError, UnsupportedModelError
from foreword.progress import Report, silent

if TYPE_CHECKING:
    from torch import Tensor

    from foreword.checkpoint.tokenizer import Tokenizer

# Types that exist but that the gguf library does not turn into floats.
_NOT_DEQUANTISED = ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "Q1_0")
QUANTISATIONS = tuple(name for name, _, _ in TENSOR_TYPES.values() if name not in _NOT_DEQUANTISED)
# Control tokens that end an answer in the chat formats of the supported families, beside the file's own end token.
_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>")
_CONTROL = 3
_JOINED_ROW_LEN = 16_384  # values; twice as fast as SmolLM2's own rows of 576


class GgufFile:
    """The model in a GGUF file. Opening reads the header; tensors are dequantised when asked for."""

    def __init__(self, path: Path, cache: Path, source: str | None = None) -> None:
        self.path = path
        self.source = source or str(path)
        self._cache = cache
        header = read_gguf_header(path)
        self.metadata = header.metadata
        spec = spec_from_gguf(header, self.source)
        if short := header.tensors.get(SHORT_FACTORS):
            has_long = LONG_FACTORS in header.tensors
            spec = with_divisors(spec, self._read_floats(short), options_of(header, self.source), has_long)
        freqs = header.tensors.get(ROPE_FREQS)
        self.spec = with_rope_freqs(spec, self._read_floats(freqs), self.source) if freqs else spec
        shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
        family = FAMILIES[architecture_of(header, self.source)]
        places = check_inventory(self.source, self.spec, {**GGUF_NAMES, **family.gguf_names}, shapes, GGUF_IGNORED)
        self._stored = {name: header.tensors[name] for place in places.values() for name in place.names}
        is_interleaved = family.interleaved_qk or family.gguf_permuted_qk
        self._tensors = FileTensors(self.spec, places, self._rows, is_interleaved=is_interleaved)
        self.row_order = row_order(family, is_gguf=True)
        self.dtype_name = self._main_type()

    def _main_type(self) -> str:
        sizes: dict[str, int] = {}
        for tensor in self._stored.values():
            if tensor.type_name not in QUANTISATIONS:
                raise UnsupportedModelError(
                    f"{self.source}: tensor {tensor.name} is quantised as {tensor.type_name}, which cannot be read; "
                    f"supported: {', '.join(QUANTISATIONS)}"
                )
            sizes[tensor.type_name] = sizes.get(tensor.type_name, 0) + math.prod(tensor.shape)
        return max(sizes, key=lambda name: sizes[name])

    @property
    def num_bytes(self) -> int:
        """Size of the parameters in the file."""
        return sum(tensor.num_bytes for tensor in self._stored.values())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the file."""
        return self._sum

    @cached_property
    def _sum(self) -> str:
        return sha256_of(self.path, self._cache)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The file's end token, then the control tokens that end a turn in a chat."""
        vocab_size = self.spec.vocab_size
        ids: list[int] = []
        for name in ("eos", "eot", "eom"):
            key = f"tokenizer.ggml.{name}_token_id"
            if (named := self.metadata.get(key)) is not None:
                ids += usable_ends([named], vocab_size, f"{self.source}: {key}")
        kinds = self.metadata.get("tokenizer.ggml.token_type", ())
        controls = {index for index, kind in enumerate(kinds) if kind == _CONTROL}
        if controls:
            texts = {text: i for i, text in enumerate(self.metadata.get("tokenizer.ggml.tokens", ())) if i in controls}
            ids += [texts[text] for text in _END_TOKENS if texts.get(text, vocab_size) < vocab_size]
        return tuple(dict.fromkeys(ids))

    def has_tensor(self, name: str) -> bool:
        """Whether the model has the tensor of this canonical name."""
        return name in self._tensors

    def tensor(self, name: str) -> "Tensor":
        """The tensor, dequantised to float32. KeyError when the model has none of this name."""
        return self._tensors.tensor(name)

    def _rows(self, stored_name: str, begin: int, end: int | None) -> "Tensor":
        import torch

        return torch.from_numpy(self._dequantise(self._stored[stored_name], begin, end))

    def as_dtype(self, dtype: str, report: Report = silent) -> Weights:
        """The same tensors in `dtype`, converted once into the cache and memory-mapped from there."""
        from foreword.checkpoint.converted import converted

        return converted(self, dtype, self._cache, report)

    def load_tokenizer(self) -> "Tokenizer":
        """The tokenizer in the file."""
        from foreword.checkpoint.gguf_tokenizer import tokenizer_from_gguf

        return tokenizer_from_gguf(self.metadata, self.source)

    def _dequantise(self, tensor: GgufTensor, begin: int = 0, end: int | None = None) -> Any:
        """Rows [begin, end) of it."""
        import numpy as np
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        shape = (len(range(*slice(begin, end).indices(tensor.shape[0]))), *tensor.shape[1:])
        row_bytes = tensor.num_bytes // tensor.shape[0]
        first = tensor.begin + begin * row_bytes if begin else tensor.begin
        num_bytes = tensor.num_bytes if shape == tensor.shape else shape[0] * row_bytes
        # Mapped anew each time: a mapping that stays would hold in memory all that was ever read of it. "c" maps privately:
        # an array that views it is writable for numpy and torch, and never reaches the file.
        raw = np.memmap(self.path, mode="c", offset=first, shape=(num_bytes,)).view(np.ndarray)
        # The library works through 16 rows at a time; blocks know nothing of rows, so short rows are joined.
        num_rows = math.prod(shape[:-1])
        while num_rows % 2 == 0 and math.prod(shape) // num_rows <= _JOINED_ROW_LEN // 2:
            num_rows //= 2
        values = dequantize(raw.reshape(num_rows, -1), GGMLQuantizationType[tensor.type_name])
        return np.ascontiguousarray(values.reshape(shape), dtype=np.float32)

    def _read_floats(self, tensor: GgufTensor) -> tuple[float, ...]:
        """A small float32 table, read without numpy."""
        if tensor.type_name != "F32":
            raise CheckpointError(f"{self.source}: {tensor.name} is stored as {tensor.type_name}; it must be F32")
        with self.path.open("rb") as file:
            file.seek(tensor.begin)
            return struct.unpack(f"<{tensor.num_bytes // 4}f", file.read(tensor.num_bytes))
