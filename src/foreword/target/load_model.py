"""Bringing models into memory: the target, and a draft model beside it on the same runtime.

A folder whose architecture foreword's own decoders do not have is loaded through transformers (`hf_load`), and says so.
Nothing else is: what foreword refuses for another reason would say other tokens there.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from foreword.checkpoint.cache import cache_folder
from foreword.checkpoint.opened import Checkpoint, open_checkpoint
from foreword.checkpoint.pairing import Pairing, Vocabulary, pair
from foreword.checkpoint.paths import is_there, local_path
from foreword.errors import ConfigError, UnsupportedArchitectureError
from foreword.progress import Report, reporting, silent
from foreword.runtime.base import Decoder, Runtime, WeightSource
from foreword.runtime.select import NATIVE_DTYPES, RuntimeChoice, check_threads, choose_runtime, make_runtime
from foreword.target.model_source import ModelSource

if TYPE_CHECKING:
    from torch import Tensor

    from foreword.checkpoint.tokenizer import Tokenizer
    from foreword.target.target import Target

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model; several `LLM`s may share it."""

    checkpoint: ModelSource
    choice: RuntimeChoice
    decoder: Decoder
    runtime: Runtime  # what the decoder was built by; builds the drafter's blocks too

    @property
    def tokenizer(self) -> "Tokenizer":
        """The model's own."""
        return self.checkpoint.tokenizer

    @property
    def runs_on(self) -> str:
        """For people: the runtime and its dtype, and whether transformers computes."""
        through = "" if isinstance(self.checkpoint, Checkpoint) else " through transformers"
        return f"{self.choice.name} {self.choice.dtype}{through}"

    @property
    def threads(self) -> int:
        """How many compute: what was asked for, or what was found to pay."""
        import torch

        return getattr(self.runtime, "threads", torch.get_num_threads())

    @property
    def vocabulary(self) -> Vocabulary:
        """What pairing looks at."""
        return vocabulary_of(self.checkpoint)


def load_model(
    model: str | Path | None = None,
    *,
    runtime: str = "auto",
    dtype: str = "auto",
    device: str = "auto",
    kv_dtype: str = "auto",
    isa: str = "auto",
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    share_weights: bool = False,
    show_progress: bool | Report = False,
) -> LoadedModel:
    """Load a model: a Hugging Face folder, a hub id, a GGUF file, or None for the default model.

    `isa` is the native runtime's instruction set, one of those that this processor runs ("auto": the fastest);
    `kv_dtype` is how the native runtime keeps keys and values: "bfloat16" (what "auto" means there), or "float32" in
    twice the memory. `share_weights` maps the native runtime's packed weights, so that processes with the same model
    hold them once and start at once; a copy of its own lies on huge pages, which is faster on most systems.
    """
    check_model_name(model)
    choice = choose_runtime(runtime, dtype, device, kv_dtype, isa)
    if share_weights and choice.name != "native":
        raise ConfigError("share_weights is for the native runtime, and this is the torch runtime; leave it out")
    choice = replace(choice, shares_weights=bool(share_weights))
    check_threads(threads)
    if not isinstance(cache_dir, str | Path | None):
        raise ConfigError(
            f"cache_dir is {cache_dir!r}; allowed: the path of a folder, or None for the user's cache folder"
        )
    if not isinstance(show_progress, bool) and not callable(show_progress):
        raise ConfigError(f"show_progress is {show_progress!r}; allowed: True, False, or a function that is told")
    cache_dir = None if cache_dir is None else Path(cache_dir)
    wants_native = runtime == "native" or dtype in NATIVE_DTYPES or (kv_dtype, isa) != ("auto", "auto")
    try:
        checkpoint = open_checkpoint(model, cache_dir=cache_dir, progress=show_progress)
    except UnsupportedArchitectureError as refusal:
        if wants_native:
            raise
        choice = choose_runtime("torch", dtype, device)
        make_runtime(choice, threads)  # sets the threads, tries the device
        return through_transformers(model, choice, refusal)
    return _load(checkpoint, choice, make_runtime(choice, threads, cache_folder(cache_dir)), show_progress)


def check_model_name(model: str | Path | None) -> None:
    """`ConfigError` for an empty name, which a script with an unset variable gives: it is no wish for the default model."""
    if not isinstance(model, str | Path | None):
        raise ConfigError(f"model is {model!r}; allowed: a folder, a .gguf file, a hub id, or a LoadedModel")
    if model is not None and not str(model).strip():
        raise ConfigError(
            f"model is {str(model)!r}; allowed: a folder, a .gguf file or a hub id, or no model at all for the default one"
        )


def load_draft_model(
    model: str | Path, target: "Target", runtime_of: Callable[[Runtime], Runtime] = lambda runtime: runtime
) -> tuple[LoadedModel, Pairing]:
    """Load a draft model, on the target's runtime or on `runtime_of` it; and how the two fit together.

    Rows of padding beyond its tokenizer are left out, so that it can never propose one.
    """
    beside = target.model
    if beside is None:
        raise ConfigError("a draft model is loaded beside a target that was loaded by name; this one has no tokenizer")
    try:
        checkpoint = open_checkpoint(model)
    except UnsupportedArchitectureError as refusal:
        return _draft_through_transformers(model, beside, refusal)
    pairing = pair(beside.vocabulary, vocabulary_of(checkpoint))
    runtime = runtime_of(beside.runtime)
    choice = replace(beside.choice, dtype=runtime.dtype)
    return _load(checkpoint, choice, runtime, vocab_size=checkpoint.tokenizer.vocab_size), pairing


def through_transformers(
    model: str | Path | None, choice: RuntimeChoice, refusal: UnsupportedArchitectureError
) -> LoadedModel:
    """A folder or hub model of an architecture that foreword has no decoder for; raises the refusal where it is neither.

    `choice.reason` of what is loaded says how it runs, and a warning does.
    """
    folder = None if model is None else _folder_of(model)
    from foreword.target.hf_load import is_causal_folder, load_folder

    if folder is None or not is_causal_folder(folder):
        raise refusal
    logger.warning(f"{refusal}; running it through transformers, which is slower")
    choice = replace(
        choice, reason="foreword has no decoder for this architecture: through transformers, which is slower"
    )
    return load_folder(folder, str(model), choice)


def _draft_through_transformers(
    model: str | Path, beside: LoadedModel, refusal: UnsupportedArchitectureError
) -> tuple[LoadedModel, Pairing]:
    from foreword.target.hf_adapter import HFDecoder

    if beside.choice.name != "torch":
        raise refusal
    loaded = through_transformers(model, beside.choice, refusal)
    pairing, size = pair(beside.vocabulary, loaded.vocabulary), loaded.tokenizer.vocab_size
    assert isinstance(loaded.decoder, HFDecoder), "transformers' models run through the adapter"
    if size < loaded.decoder.spec.vocab_size:
        loaded = replace(loaded, decoder=loaded.decoder.trimmed(size))
    return loaded, pairing


def _folder_of(model: str | Path) -> Path | None:
    """Where the model's files are; a hub model has been fetched already."""
    from foreword.checkpoint.hub import fetch_from_hub, is_hub_name

    path = local_path(model)
    if is_there(path) or not is_hub_name(str(model)):
        return path if path.is_dir() else None
    fetched = fetch_from_hub(str(model), silent)
    return fetched if fetched.is_dir() else None


def _load(
    checkpoint: Checkpoint,
    choice: RuntimeChoice,
    runtime: Runtime,
    show_progress: bool | Report = False,
    vocab_size: int | None = None,
) -> LoadedModel:
    weights: Any = checkpoint.as_dtype(choice.dtype, show_progress) if choice.name == "torch" else checkpoint
    spec = checkpoint.spec
    if vocab_size is not None and vocab_size < spec.vocab_size:
        weights = TrimmedVocab(weights, vocab_size)
        spec = replace(spec, vocab_size=vocab_size)
    with reporting(show_progress):
        return LoadedModel(checkpoint, choice, runtime.decoder(spec, weights), runtime)


@final
class TrimmedVocab:
    """A `WeightSource` whose embedding and head end at a vocabulary's size."""

    _TABLES = ("embed.weight", "head.weight")

    def __init__(self, weights: WeightSource, vocab_size: int) -> None:
        self._weights, self._vocab_size = weights, vocab_size

    @property
    def fingerprint(self) -> str:
        """Another one than the whole table's."""
        return f"{self._weights.fingerprint}-{self._vocab_size}"

    def has_tensor(self, name: str) -> bool:
        """As the source."""
        return self._weights.has_tensor(name)

    def tensor(self, name: str) -> "Tensor":
        """As the source, the tables without their last rows."""
        tensor = self._weights.tensor(name)
        return tensor[: self._vocab_size] if name in self._TABLES else tensor


def vocabulary_of(model: ModelSource) -> Vocabulary:
    """What pairing looks at in a model."""
    tokenizer = model.tokenizer
    ids: Mapping[str, int] = tokenizer.backend.get_vocab(with_added_tokens=True)
    return Vocabulary(model.source, ids, model.spec.num_parameters, tokenizer.special_tokens)
