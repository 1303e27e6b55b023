"""How a request wants its tokens drawn."""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from foreword.errors import ConfigError

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True)
class Warp:
    """The part of the sampling options that turns logits into probabilities.

    Applied in this order: temperature, top-k, top-p, min-p, each on what the one before left.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # keep the k largest; 0 keeps all
    top_p: float = 1.0  # keep the smallest set of the likeliest tokens that holds this mass
    min_p: float = 0.0  # keep tokens at least this fraction as likely as the likeliest

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, without noise."""
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Whether any token is removed before drawing."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Options of one request. Invalid values raise `ConfigError`.

    `temperature` is 0 (greedy) unless given. Without a `seed` each request gets a fresh one, reported in its result; the
    same seed gives the same tokens whatever drafter, batch or timing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, lambda t: t >= 0, "0 (greedy) or above")
        _check_number("top_p", self.top_p, lambda p: 0 < p <= 1, "above 0, at most 1 (1 keeps all)")
        _check_number("min_p", self.min_p, lambda p: 0 <= p <= 1, "from 0 (off) to 1")
        _check_integer("top_k", self.top_k, 0, "0 (off) or above")
        _check_integer("max_tokens", self.max_tokens, 0, "0 or above")
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, "a whole number from 0 to 2^64 - 1, or None for a fresh one")
            if self.seed >= 1 << 64:
                raise ConfigError(f"seed is {self.seed}; allowed: a whole number from 0 to 2^64 - 1")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def warp(self) -> Warp:
        """The part that turns logits into probabilities."""
        if self.temperature == 0:
            return Warp()
        return Warp(self.temperature, self.top_k, self.top_p, self.min_p)

    def with_seed(self) -> "SamplingParams":
        """These options with a seed: their own, or a fresh one."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(63))


def _check_number(name: str, value: Any, is_allowed: Callable[[float], bool], allowed: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not is_allowed(value):
        raise ConfigError(f"{name} is {value!r}; allowed: {allowed}")


def _check_integer(name: str, value: Any, lowest: int, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ConfigError(f"{name} is {value!r}; allowed: {allowed}")
