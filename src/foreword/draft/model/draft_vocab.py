"""A list of frequent tokens that a drafter's head is trimmed to: most of a large vocabulary hardly ever occurs [frspec25].

    freq_32768.pt      torch.save of a list of ids, or of a tensor of them: as the method's authors publish it
    tokens.json        a JSON list of ids

The order of the list says nothing. End and special tokens are drafted too, whether the list has them or not: every answer
ends with one. The model still checks with its whole vocabulary, so no token changes.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from foreword.checkpoint.json_file import JSON_ERRORS
from foreword.errors import ConfigError
from foreword.runtime.base import WeightSource
from foreword.target.load_model import LoadedModel


def drafted_ids(draft_vocab: str | None, beside: LoadedModel) -> Tensor | None:
    """The target's ids that the list in a file lets a drafter guess, ascending (int64); None for all.

    Raises:
        ConfigError: there is no such file, or it holds no list of this model's token ids.
    """
    if draft_vocab is None:
        return None
    vocab_size = beside.checkpoint.spec.vocab_size
    forced = {*beside.checkpoint.eos_token_ids, *beside.tokenizer.special_ids}
    return read_draft_vocab(draft_vocab, vocab_size, forced)


def read_draft_vocab(path: str | Path, vocab_size: int, forced: Iterable[int] = ()) -> Tensor:
    """Ids in a file, ascending (int64), with those of `forced` that the vocabulary has. Errors as `drafted_ids`."""
    ids = _listed(Path(path).expanduser())
    if not ids:
        raise ConfigError(f"draft_vocab is {str(path)!r}, a list without a token; name at least one token to draft")
    if outside := sorted(one for one in ids if not 0 <= one < vocab_size):
        raise ConfigError(
            f"draft_vocab is {str(path)!r}, which names token {outside[0]}; allowed: 0 to {vocab_size - 1}, the target's "
            f"vocabulary; was the list counted for another model?"
        )
    return torch.tensor(sorted(ids | {one for one in forced if 0 <= one < vocab_size}))


def _listed(path: Path) -> set[int]:
    """The ids as they are written, each once."""
    if not path.is_file():
        raise ConfigError(
            f"draft_vocab is {str(path)!r}, and there is no such file; allowed: a .pt or .json list of ids"
        )
    value = _json(path) if path.suffix == ".json" else _unpickled(path)
    if isinstance(value, Tensor) and value.ndim == 1 and not (value.is_floating_point() or value.is_complex()):
        value = None if value.dtype == torch.bool else value.tolist()
    if not isinstance(value, list | tuple) or not all(type(one) is int for one in value):
        raise ConfigError(
            f"draft_vocab is {str(path)!r}, which holds something else than a list of token ids; allowed: a JSON list of "
            f"whole numbers, or torch.save of such a list or of a tensor of them"
        )
    return set(value)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, *JSON_ERRORS) as error:
        raise ConfigError(f"draft_vocab is {str(path)!r}, which cannot be read as JSON ({error})") from error


def _unpickled(path: Path) -> Any:
    """What a pickle holds; anything but plain values and tensors is refused before it could run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything: it is a program
        first_line = str(error).partition("\n")[0]
        raise ConfigError(
            f"draft_vocab is {str(path)!r}, which does not hold plain values ({first_line}); write the ids as a JSON list "
            f"in a file that ends in .json"
        ) from error


def check_untrimmed(path: Path, num_rows: int | None, ids: Tensor | None) -> None:
    """`ConfigError` where a drafter that has a vocabulary of its own (`num_rows`) is to be trimmed to `ids`."""
    if ids is not None and num_rows is not None:
        raise ConfigError(
            f"draft_vocab names tokens to draft, and the drafter in {path} was made for {num_rows} tokens of its own choice; "
            f"leave draft_vocab out"
        )


@final
class TrimmedHead:
    """A `WeightSource` whose head has some of the rows, taken once.

    Args:
        weights: with a "head.weight" of all rows.
        ids: the rows.
    """

    def __init__(self, weights: WeightSource, ids: Tensor) -> None:
        self._weights, self._ids = weights, ids
        self._head: Tensor | None = None

    @property
    def fingerprint(self) -> str:
        """Another one for every list."""
        rows = hashlib.sha256(self._ids.to(torch.int64).numpy().tobytes()).hexdigest()
        return hashlib.sha256(f"{self._weights.fingerprint}\n{rows}".encode()).hexdigest()

    def has_tensor(self, name: str) -> bool:
        """As the source."""
        return self._weights.has_tensor(name)

    def tensor(self, name: str) -> Tensor:
        """As the source, the head trimmed."""
        if name != "head.weight":
            return self._weights.tensor(name)
        if self._head is None:
            self._head = self._weights.tensor(name)[self._ids]
        return self._head
