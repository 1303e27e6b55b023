"""A Hugging Face folder: config.json, safetensors (one file or shards with an index), tokenizer files."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from foreword.checkpoint.cache import sha256_of
from foreword.checkpoint.hf_config import eos_ids, spec_from_config
from foreword.checkpoint.inventory import check_inventory
from foreword.checkpoint.json_file import read_json, read_json_if_any
from foreword.checkpoint.name_map import HF_IGNORED, HF_NAMES
from foreword.checkpoint.safetensors_file import SafetensorsFile
from foreword.errors import CheckpointError, UnsupportedModelError
from foreword.progress import Report, silent

if TYPE_CHECKING:
    from torch import Tensor

    from foreword.checkpoint.tokenizer import Tokenizer

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
        self.spec = spec_from_config(config, self.source)
        self.eos_token_ids = eos_ids(read_json_if_any(folder / "generation_config.json"), config)
        self._files = _open_files(folder)
        self._where = {name: file for file in self._files for name in file.tensors}
        shapes = {name: file.tensors[name].shape for name, file in self._where.items()}
        self._names = check_inventory(self.source, self.spec, HF_NAMES, shapes, HF_IGNORED)
        self.dtype_name = self._main_dtype()

    def _main_dtype(self) -> str:
        """Name of the dtype that most bytes have; refuses those that cannot be computed with."""
        sizes: dict[str, int] = {}
        for name in self._names.values():
            stored = self._where[name].tensors[name]
            if stored.dtype not in DTYPES:
                raise UnsupportedModelError(
                    f"{self.source}: tensor {name} has dtype {stored.dtype}, which foreword does not read; "
                    f"supported: {', '.join(DTYPES.values())}"
                )
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + stored.num_bytes
        return DTYPES[max(sizes, key=lambda dtype: sizes[dtype])]

    @property
    def num_bytes(self) -> int:
        """Size of the parameters in the files."""
        return sum(self._where[name].tensors[name].num_bytes for name in self._names.values())

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the content of the safetensors files."""
        sums = [f"{file.path.name} {sha256_of(file.path, self._cache)}" for file in self._files]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def has_tensor(self, name: str) -> bool:
        """Whether the model has the tensor of this canonical name."""
        return name in self._names

    def tensor(self, name: str) -> "Tensor":
        """The tensor, memory-mapped, as stored. KeyError when the model has none of this name."""
        stored_name = self._names[name]
        return self._where[stored_name].tensor(stored_name)

    def as_dtype(self, dtype: str, report: Report = silent) -> "FolderFiles":
        """The same tensors: float tensors need no conversion that a runtime's own cast does not do."""
        return self

    def load_tokenizer(self) -> "Tokenizer":
        """The tokenizer beside the weights."""
        from foreword.checkpoint.folder_tokenizer import tokenizer_from_folder

        return tokenizer_from_folder(self.path, self.source)


def _open_files(folder: Path) -> list[SafetensorsFile]:
    """All safetensors files of the model, in the order of their names."""
    index = folder / INDEX_FILE
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index} has no weight_map; fetch it again")
        return _open_shards(folder, weight_map)
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


def _open_shards(folder: Path, weight_map: dict[str, str]) -> list[SafetensorsFile]:
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files: {', '.join(missing[:3])}; fetch it again"
        )
    files = {name: SafetensorsFile(folder / name) for name in names}
    for tensor, name in weight_map.items():
        if tensor not in files[name].tensors:
            raise CheckpointError(
                f"{folder / name} lacks tensor {tensor}, which {INDEX_FILE} says is there; fetch it again"
            )
    return list(files.values())
