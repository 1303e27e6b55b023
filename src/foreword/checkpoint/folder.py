"""A Hugging Face folder: config.json, safetensors (one file or shards with an index), tokenizer files."""

import hashlib
import logging
from collections.abc import Container, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.cache import sha256_of
from foreword.checkpoint.drafter_kind import drafter_kind_of, stands_alone
from foreword.checkpoint.file_tensors import FileTensors, row_order
from foreword.checkpoint.hf_config import eos_ids, family_of, spec_from_config, text_half
from foreword.checkpoint.inventory import check_inventory
from foreword.checkpoint.json_file import read_json, read_json_if_any
from foreword.checkpoint.name_map import HF_IGNORED, HF_NAMES
from foreword.checkpoint.safetensors_file import SafetensorsFile
from foreword.checkpoint.safetensors_index import index_of, open_indexed
from foreword.config import ModelSpec
from foreword.errors import CheckpointError, UnsupportedModelError
from foreword.progress import Report, silent

if TYPE_CHECKING:
    from torch import Tensor

    from foreword.checkpoint.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
# dtype in the header -> its name for people
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class FolderFiles:
    """The model in a folder. Opening reads configuration and headers; weights are mapped when asked for."""

    def __init__(self, folder: Path, cache: Path, source: str | None = None) -> None:
        self.path = folder
        self.source = source or str(folder)
        self._cache = cache
        config = read_json(folder / "config.json")
        refuse_drafter(folder, config, self.source)
        spec = spec_from_config(config, self.source)
        tables = {"generation_config.json": read_json_if_any(folder / "generation_config.json"), "config.json": config}
        if "text_config" in config and config.get("eos_token_id") is None:
            tables["config.json"] = dict(text_half(config, self.source)[0])
        self.eos_token_ids = eos_ids(tables, spec.vocab_size, self.source)
        self._files = open_shards(folder)
        self._where = {name: file for file in self._files for name in file.tensors}
        family = family_of(config, self.source)
        names = names_in(self._where, {**HF_NAMES, **family.hf_names})
        self.spec = self._with_own_head(spec, names)
        shapes = {name: file.tensors[name].shape for name, file in self._where.items()}
        places = check_inventory(self.source, self.spec, names, shapes, HF_IGNORED)
        self._stored = sorted({name for place in places.values() for name in place.names})
        self._tensors = FileTensors(
            self.spec, places, self._rows, is_interleaved=family.interleaved_qk, norm_offset=family.hf_norm_offset
        )
        self.row_order = row_order(family, is_gguf=False)
        self.dtype_name = self._main_dtype()

    def _with_own_head(self, spec: ModelSpec, names: Mapping[str, str]) -> ModelSpec:
        """A head that differs from the embedding is the model's own, whatever config.json says: transformers does so too."""
        embedding, head = names["embed.weight"], names["head.weight"]
        if not spec.tied_head or not {embedding, head} <= self._where.keys() or self._holds_same(embedding, head):
            return spec
        logger.warning(
            f"{self.source}: config.json says that the output head is the embedding (tie_word_embeddings), but {head} in "
            f"the files differs from it; the head in the files is taken, as transformers does"
        )
        return replace(spec, tied_head=False)

    def _holds_same(self, name: str, other: str) -> bool:
        """Whether two tensors are equal, value for value."""
        import torch

        one, two = (self._where[n].tensor(n) for n in (name, other))
        return one.shape == two.shape and torch.equal(one, two.to(one.dtype))

    def _main_dtype(self) -> str:
        """Name of the dtype that most bytes have; refuses those that cannot be computed with."""
        sizes: dict[str, int] = {}
        for name in self._stored:
            stored = self._where[name].tensors[name]
            if stored.dtype not in DTYPES:
                raise CheckpointError(
                    f"{self.source}: tensor {name} has dtype {stored.dtype}, which no parameter of this model has; "
                    f"allowed: {', '.join(DTYPES.values())}; the file is damaged, or quantised by another program"
                )
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + stored.num_bytes
        return DTYPES[max(sizes, key=lambda dtype: sizes[dtype])]

    @property
    def num_bytes(self) -> int:
        """Size of the parameters in the files."""
        return sum(self._where[name].tensors[name].num_bytes for name in self._stored)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the content of the safetensors files."""
        return self._sum

    @cached_property
    def _sum(self) -> str:
        sums = [f"{file.path.name} {sha256_of(file.path, self._cache)}" for file in self._files]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def has_tensor(self, name: str) -> bool:
        """Whether the model has the tensor of this canonical name."""
        return name in self._tensors

    def tensor(self, name: str) -> "Tensor":
        """The tensor, memory-mapped where it is stored like this. KeyError when the model has none of this name."""
        return self._tensors.tensor(name)

    def _rows(self, stored_name: str, begin: int, end: int | None) -> "Tensor":
        return self._where[stored_name].tensor(stored_name)[begin:end]

    def as_dtype(self, dtype: str, report: Report = silent) -> "FolderFiles":
        """The same tensors: float tensors need no conversion that a runtime's own cast does not do."""
        return self

    def load_tokenizer(self) -> "Tokenizer":
        """The tokenizer beside the weights."""
        from foreword.checkpoint.folder_tokenizer import tokenizer_from_folder

        return tokenizer_from_folder(self.path, self.source)


# What the parts of a model that reads more than text call its language model: (layers and tables, head).
_PREFIXES = (("model.", ""), ("model.language_model.", ""), ("language_model.model.", "language_model."))


def names_in(stored: Container[str], names: Mapping[str, str]) -> dict[str, str]:
    """The names with the prefixes that these files have."""
    embedding = names["embed.weight"].removeprefix("model.")
    body, head = next((pair for pair in _PREFIXES if pair[0] + embedding in stored), _PREFIXES[0])
    return {
        own: head + name if own == "head.weight" else body + name.removeprefix("model.") for own, name in names.items()
    }


def open_shards(folder: Path) -> list[SafetensorsFile]:
    """All safetensors files of the model, in the order of their names.

    Raises:
        CheckpointError: one is missing or damaged.
        UnsupportedModelError: the weights are in another format.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        return open_indexed(index)
    if (folder / SINGLE_FILE).is_file():
        return [SafetensorsFile(folder / SINGLE_FILE)]
    shards = sorted(folder.glob("*.safetensors"))
    if shards:
        raise CheckpointError(
            f"{folder} has {len(shards)} safetensors files ({shards[0].name}, ...) but neither {SINGLE_FILE} nor "
            f"{INDEX_FILE}; fetch the index, or name a single file {SINGLE_FILE}"
        )
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickled:
        raise UnsupportedModelError(
            f"{folder} holds its weights as {pickled[0].name}, a format that can run code when loaded; supported: "
            f"safetensors and GGUF; transformers' save_pretrained writes safetensors"
        )
    raise CheckpointError(f"{folder} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is there; fetch it again")


def refuse_drafter(folder: Path, config: Mapping[str, Any], source: str) -> None:
    """`UnsupportedModelError` for a drafter that is taken for a model, with what takes it."""
    file = folder / SINGLE_FILE
    index = folder / INDEX_FILE
    names = index_of(index) if index.is_file() else SafetensorsFile(file).tensors if file.is_file() else ()
    kind = drafter_kind_of(config, names)
    if kind is None and config.get("model_type") == "medusa":
        kind = "medusa"
    if kind is not None and not stands_alone(names) or kind == "draft_model":
        raise UnsupportedModelError(
            f"{source} holds a drafter, not a model that stands alone; use it beside its model: --drafter {kind}={source}"
        )
