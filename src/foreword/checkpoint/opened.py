"""A model on disk, opened: what it is, its weights by canonical name, its tokenizer.

    open_checkpoint(None)                      the default model
    open_checkpoint("path/to/folder")          a Hugging Face folder
    open_checkpoint("path/to/model.gguf")      a GGUF file
    open_checkpoint("owner/name")              a Hugging Face hub id
    open_checkpoint("owner/name/model.gguf")   one file of a hub repository

Opening reads headers only: no torch, no weights. A `Checkpoint` is a `WeightSource` (`runtime/base.py`).
"""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from foreword.checkpoint.cache import cache_folder
from foreword.checkpoint.hf_config import usable_ends
from foreword.checkpoint.paths import is_folder, is_there, local_path
from foreword.checkpoint.reading import reading
from foreword.checkpoint.weights import Weights
from foreword.config import ModelSpec, short_repr
from foreword.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from foreword.progress import Report, reporting, silent

if TYPE_CHECKING:
    from torch import Tensor

    from foreword.checkpoint.tokenizer import Tokenizer

DEFAULT_NAMES = ("default", "smollm2-135m")


class ModelFiles(Weights, Protocol):
    """What a format's reader offers; `FolderFiles` and `GgufFile` are such."""

    path: Path
    source: str
    spec: ModelSpec
    dtype_name: str

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, as far as the files say."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of the parameters in the files."""
        ...

    def as_dtype(self, dtype: str, report: Report = silent) -> Weights:
        """The weights for a runtime that holds them as `dtype`."""
        ...

    def load_tokenizer(self) -> "Tokenizer":
        """Read the tokenizer."""
        ...


class Checkpoint:
    """An opened model."""

    def __init__(self, files: ModelFiles, spec: ModelSpec | None = None) -> None:
        self._files, self._spec = files, spec

    @property
    def spec(self) -> ModelSpec:
        """What the model is."""
        return self._files.spec if self._spec is None else self._spec

    def run_as(self, spec: ModelSpec) -> "Checkpoint":
        """The same files, run with other options."""
        return Checkpoint(self._files, spec)

    @property
    def source(self) -> str:
        """What it is called in messages: the path, hub id or name it was opened by."""
        return self._files.source

    @property
    def path(self) -> Path:
        """The folder or file that holds it."""
        return self._files.path

    @property
    def dtype_name(self) -> str:
        """How most parameters are stored: "bfloat16", "Q4_1", ..."""
        return self._files.dtype_name

    @property
    def num_bytes(self) -> int:
        """Size of the parameters in the files."""
        return self._files.num_bytes

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All tokens that end an answer; the tokenizer's own where the model names none."""
        ids = self._files.eos_token_ids
        if not ids and (own := self.tokenizer.eos_token_id) is not None:
            return tuple(usable_ends([own], self.spec.vocab_size, f"{self.source}: the tokenizer's eos_token"))
        return ids

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer, loaded at the first use. `CheckpointError` where there is none, or it is damaged."""
        with reading(f"the tokenizer of {self.source}"):
            return self._files.load_tokenizer()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights' files: read through once, then remembered in the cache."""
        return self._files.fingerprint

    @property
    def row_order(self) -> str:
        """What its family says of the order of rows in its files: part of the name of what is made from them."""
        return getattr(self._files, "row_order", "")

    def has_tensor(self, name: str) -> bool:
        """Whether the model has the tensor of this canonical name."""
        return self._files.has_tensor(name)

    def tensor(self, name: str) -> "Tensor":
        """The tensor: memory-mapped as stored (folder), or dequantised to float32 (GGUF). Never write to it."""
        return self._files.tensor(name)

    def as_dtype(self, dtype: str, progress: "bool | Report | None" = None) -> Weights:
        """The weights for a runtime that holds them as `dtype`, "float32" or "bfloat16".

        A GGUF is converted once and memory-mapped from the cache afterwards. A folder's tensors come as they are
        stored: casting them is the runtime's.
        """
        with reporting(progress) as report:
            return self._files.as_dtype(dtype, report)


def open_checkpoint(
    model: str | Path | None, *, cache_dir: str | Path | None = None, progress: "bool | Report | None" = None
) -> Checkpoint:
    """Find a model, fetch it if it has to be, read its headers.

    Args:
        model: path, hub id, or None for the default model.
        cache_dir: folder for downloads and converted weights; see `cache_folder`.
        progress: True draws bars on stderr for what takes time; a function is called instead.

    Raises:
        ModelNotFoundError: there is no such file, folder or hub id, or it cannot be reached.
        DownloadError: fetching failed.
        CheckpointError: the files are incomplete or damaged.
        UnsupportedArchitectureError: an architecture that foreword has no decoder for.
        UnsupportedModelError: an option or quantisation that foreword does not have.
    """
    cache = cache_folder(cache_dir)
    with reading(model), reporting(progress) as report:
        if model is None or model in DEFAULT_NAMES:
            from foreword.checkpoint.default_model import fetch_default_model

            return Checkpoint(_open_gguf(fetch_default_model(cache, report), cache, DEFAULT_NAMES[1]))
        path = local_path(model)
        if is_there(path):
            return Checkpoint(_open_path(path, cache))
        from foreword.checkpoint.hub import fetch_from_hub, is_hub_name

        if isinstance(model, Path) or not is_hub_name(model):
            raise _not_found(str(model), path)
        return Checkpoint(_open_path(fetch_from_hub(model, report), cache, model))


def _open_path(path: Path, cache: Path, source: str | None = None) -> ModelFiles:
    from foreword.checkpoint.folder import FolderFiles

    if path.is_file():
        if path.suffix == ".safetensors":
            raise UnsupportedModelError(f"{path} holds weights only; give the folder, with config.json and a tokenizer")
        return _open_gguf(path, cache, source)
    if (path / "config.json").is_file():
        return FolderFiles(path, cache, source)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return _open_gguf(ggufs[0], cache, source)
    if ggufs:
        names = ", ".join(file.name for file in ggufs)
        raise ModelNotFoundError(f"{source or path} holds {len(ggufs)} GGUF files; name one of them: {names}")
    raise CheckpointError(f"{source or path} holds no model: neither config.json nor a .gguf file is there")


def _open_gguf(path: Path, cache: Path, source: str | None = None) -> ModelFiles:
    from foreword.checkpoint.gguf_file import GgufFile

    return GgufFile(path, cache, source)


def _not_found(model: str, path: Path) -> ModelNotFoundError:
    parent = path.parent
    beside = sorted(file.name for file in parent.glob("*.gguf"))[:5] if is_folder(parent) else []
    hint = f"; {parent} holds {', '.join(beside)}" if path.suffix == ".gguf" and beside else ""
    return ModelNotFoundError(
        f"there is no model {short_repr(model, 200)}: no such file or folder{hint}; allowed: a folder with config.json, a .gguf file, "
        f"a hub id such as owner/name, or 'default'"
    )
