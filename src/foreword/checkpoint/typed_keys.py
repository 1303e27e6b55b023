"""One table of options (config.json, GGUF metadata, a drafter's card), each value read by its type.

Missing and null mean the default, where there is one. Every other misfit is a `CheckpointError` that says which key of
which source has which value, and what is allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foreword.config import MAX_SIZE, is_finite, short_repr
from foreword.errors import CheckpointError


@dataclass(frozen=True)
class Options:
    """The values, and what messages call them.

    Args:
        values: by key.
        source: the model's or drafter's name.
        place: where in it the table is, such as " in config.json"; follows the key.
        prefix: what the keys begin with in `values`, such as "llama.".
    """

    values: Mapping[str, Any]
    source: str
    place: str = " in config.json"
    prefix: str = ""

    def get(self, key: str) -> Any:
        """As it is; None where there is none."""
        return self.values.get(self.prefix + key)

    def wrong(self, key: str, allowed: str) -> CheckpointError:
        """The error that says so."""
        shown = short_repr(self.get(key)) if self.prefix + key in self.values else "missing"
        return CheckpointError(f"{self.source}: {self.prefix}{key}{self.place} is {shown}; allowed: {allowed}")

    def whole(self, key: str, default: int | None = None, lowest: int = 0, highest: int = MAX_SIZE) -> int:
        """A whole number."""
        value = self.get(key)
        value = default if value is None else value
        if type(value) is not int or not lowest <= value <= highest:
            raise self.wrong(key, f"a whole number, {lowest} to {highest}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        return self.whole(key, default, lowest=1)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number. Null is none, as whoever made the model could not compute with it either."""
        value = self.values.get(self.prefix + key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not is_finite(value):
            raise self.wrong(key, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, "a list of texts")
        return tuple(value)

    def table(self, key: str) -> "Options":
        """The options inside; none where there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, "a table of options")
        return Options(value or {}, self.source, f" in {key}{self.place}")
