"""Bringing models into memory: the target, and a draft model beside it on the same runtime."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from foreword.checkpoint.cache import cache_folder
from foreword.checkpoint.checkpoint import Checkpoint, open_checkpoint
from foreword.checkpoint.pairing import Pairing, Vocabulary, pair
from foreword.errors import ConfigError
from foreword.runtime.base import Decoder, Runtime, WeightSource
from foreword.runtime.select import RuntimeChoice, check_threads, choose_runtime, make_runtime

if TYPE_CHECKING:
    from torch import Tensor

    from foreword.checkpoint.tokenizer import Tokenizer
    from foreword.target.target import Target


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory; several `LLM`s may share it."""

    checkpoint: Checkpoint
    choice: RuntimeChoice
    decoder: Decoder
    runtime: Runtime  # what the decoder was built by; builds the drafter's blocks too

    @property
    def tokenizer(self) -> "Tokenizer":
        """The model's own."""
        return self.checkpoint.tokenizer

    @property
    def vocabulary(self) -> Vocabulary:
        """What pairing looks at."""
        tokenizer, spec = self.tokenizer, self.checkpoint.spec
        return _vocabulary(self.checkpoint.source, tokenizer, spec.num_parameters)


def load_model(
    model: str | Path | None = None,
    *,
    runtime: str = "auto",
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    cache_dir: Path | None = None,
    show_progress: bool = False,
) -> LoadedModel:
    """Bring a model into memory: a Hugging Face folder, a hub id, a GGUF file, or None for the default model."""
    choice = choose_runtime(runtime, dtype, device)
    check_threads(threads)
    checkpoint = open_checkpoint(model, cache_dir=cache_dir, progress=show_progress)
    return _load(checkpoint, choice, make_runtime(choice, threads, cache_folder(cache_dir)), show_progress)


def load_draft_model(model: str | Path, target: "Target") -> tuple[LoadedModel, Pairing]:
    """Bring a draft model into memory, on the target's runtime; and how the two go together.

    Rows of padding beyond its tokenizer are left out, so that it can never propose one.
    """
    beside = target.model
    if beside is None:
        raise ConfigError("a draft model is loaded beside a target that was loaded by name; this one has no tokenizer")
    checkpoint = open_checkpoint(model)
    vocabulary = _vocabulary(checkpoint.source, checkpoint.tokenizer, checkpoint.spec.num_parameters)
    pairing = pair(beside.vocabulary, vocabulary)
    return _load(checkpoint, beside.choice, beside.runtime, vocab_size=checkpoint.tokenizer.vocab_size), pairing


def _load(
    checkpoint: Checkpoint,
    choice: RuntimeChoice,
    runtime: Runtime,
    show_progress: bool = False,
    vocab_size: int | None = None,
) -> LoadedModel:
    weights: Any = checkpoint.as_dtype(choice.dtype, show_progress) if choice.name == "torch" else checkpoint
    spec = checkpoint.spec
    if vocab_size is not None and vocab_size < spec.vocab_size:
        weights = TrimmedVocab(weights, vocab_size)
        spec = replace(spec, vocab_size=vocab_size)
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


def _vocabulary(source: str, tokenizer: "Tokenizer", num_parameters: int) -> Vocabulary:
    ids: Mapping[str, int] = tokenizer.backend.get_vocab(with_added_tokens=True)
    return Vocabulary(source, ids, num_parameters, tokenizer.special_tokens)
