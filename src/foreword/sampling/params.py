"""Sampling options of a request."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from foreword.errors import ConfigError
from foreword.validate import Bounds, integer, listed, number, token_ids

if TYPE_CHECKING:
    from foreword.sampling.grammar import Grammar
    from foreword.sampling.user_processors import LogitsProcessor, StatefulProcessor

DEFAULT_MAX_TOKENS = 128
MAX_N = 128  # answers per prompt
_LOWEST_TEMPERATURE = 1e-5  # logits divided by less overflow


@dataclass(frozen=True)
class Warp:
    """The part of the sampling options that turns logits into probabilities.

    Applied in this order: temperature, top-k, top-p, min-p, each on what the one before left.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # keep the k largest; 0 keeps all
    top_p: float = 1.0  # keep the smallest set of most probable tokens whose probabilities sum to this
    min_p: float = 0.0  # keep tokens whose probability is at least this fraction of the highest

    @property
    def is_greedy(self) -> bool:
        """Whether the top-1 token is taken, without noise."""
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Whether any token is removed before sampling."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Options of one request. Invalid values raise `ConfigError`; the defaults change nothing.

    `temperature` is 0 (greedy) unless given. Without a `seed` each request gets a fresh one, reported in its result;
    the same seed gives the same tokens whatever drafter, batch or timing. None where a list is expected is an empty one.

    Logits are changed in this order: logit_bias, allowed_token_ids, bad_words, grammar, min_tokens; repetition penalty
    (prompt and answer), presence and frequency penalty (answer only); logits_processors; then temperature, top-k,
    top-p, min-p. A token that an earlier part excludes stays excluded.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # keep the k most probable tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest set of most probable tokens whose probabilities sum to this
    min_p: float = 0.0  # keep tokens whose probability is at least this fraction of the highest
    seed: int | None = None  # None: a random one, reported in the result
    n: int = 1  # answers per prompt, at most 128; answer 0 uses the seed itself
    max_tokens: int = DEFAULT_MAX_TOKENS  # most new tokens
    min_tokens: int = 0  # no end token or stop string ends the answer before this many tokens precede it
    stop_token_ids: tuple[int, ...] = ()  # further tokens that end the answer
    stop: tuple[str, ...] = ()  # texts that end the answer and are removed from it; one text may be given as it is
    ignore_eos: bool = False  # continue after the model's end token
    repetition_penalty: float = 1.0  # above 1: tokens of prompt and answer become less probable
    presence_penalty: float = 0.0  # subtracted once from the logits of tokens of the answer
    frequency_penalty: float = 0.0  # subtracted for each time they occur in the answer
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()  # added to logits; kept as pairs
    allowed_token_ids: tuple[int, ...] | None = None  # no others; None allows all
    bad_words: tuple[str | tuple[int, ...], ...] = ()  # token sequences (or texts) that may not be completed
    grammar: "Grammar | None" = None  # what the answer must look like
    logits_processors: tuple["LogitsProcessor | StatefulProcessor", ...] = ()
    logprobs: int | None = None  # log-probabilities of the answer's tokens, and of this many top tokens
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    skip_special_tokens: bool = True  # False: the text shows them, but for the end token that ends the answer

    def __post_init__(self) -> None:
        self._check_drawing()
        self._check_end()
        self._check_penalties()
        self._check_tokens()

    def _check_drawing(self) -> None:
        number(
            "temperature",
            self.temperature,
            lambda t: t == 0 or t >= _LOWEST_TEMPERATURE,
            f"0 for greedy, or {_LOWEST_TEMPERATURE:g} and above",
        )
        number("top_p", self.top_p, lambda p: 0 < p <= 1, "above 0, at most 1 (1 keeps all)")
        number("min_p", self.min_p, lambda p: 0 <= p <= 1, "from 0 (off) to 1")
        self._set_integer("top_k", 0, "0 (off) or above")
        self._set_integer("n", 1, f"from 1 to {MAX_N}")
        if self.n > MAX_N:
            raise ConfigError(f"n is {self.n}; allowed: from 1 to {MAX_N}; ask several times for more")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._set_integer(name, 0, "None (off), 0 (the token alone) or above")
        if self.seed is not None:
            self._set_integer("seed", 0, "a whole number from 0 to 2^64 - 1, or None for a fresh one")
            if self.seed >= 1 << 64:
                raise ConfigError(f"seed is {self.seed}; allowed: a whole number from 0 to 2^64 - 1")

    def _check_end(self) -> None:
        self._set_integer("max_tokens", 0, "0 or above")
        self._set_integer("min_tokens", 0, "0 or above")
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}; swap or lower it"
            )
        self._set("stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        Bounds(bool).checked("skip_special_tokens", self.skip_special_tokens)
        stop = listed("stop", self.stop, "texts")
        for text in stop:
            if not isinstance(text, str) or not text:
                raise ConfigError(f"stop has {text!r}; allowed: texts of at least one character")
        self._set("stop", stop)

    def _check_penalties(self) -> None:
        number("repetition_penalty", self.repetition_penalty, lambda r: r > 0, "above 0 (1 is off)")
        for name in ("presence_penalty", "frequency_penalty"):
            number(name, getattr(self, name), lambda _: True, "a finite number (0 is off)")
        try:
            biases = dict(() if self.logit_bias is None else self.logit_bias)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"logit_bias is {self.logit_bias!r}; allowed: {{token id: number}}") from error
        for token, bias in biases.items():
            integer("a token id of logit_bias", token, 0, "0 or above")
            number(f"logit_bias of token {token}", bias, lambda _: True, "a finite number (-100 all but bans)")
        self._set("logit_bias", tuple(sorted((int(token), float(bias)) for token, bias in biases.items())))

    def _check_tokens(self) -> None:
        if self.allowed_token_ids is not None:
            allowed = token_ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise ConfigError("allowed_token_ids is empty, which allows nothing; give ids, or None to allow all")
            self._set("allowed_token_ids", allowed)
        words = listed("bad_words", self.bad_words, "texts or token sequences")
        ids = tuple(word if isinstance(word, str) else token_ids("bad_words", word) for word in words)
        if not all(ids):
            raise ConfigError("bad_words has an empty entry; give texts or token sequences of at least one token")
        self._set("bad_words", ids)
        self._set("logits_processors", listed("logits_processors", self.logits_processors, "callables"))
        for processor in self.logits_processors:
            if not callable(processor):
                raise ConfigError(
                    f"logits_processors has {processor!r}; allowed: callables (token_ids, logits) -> logits"
                )
        if self.grammar is not None:
            from foreword.sampling.grammar import (
                Grammar,
            )  # torch comes with it: `foreword --help` must not wait for that

            if not isinstance(self.grammar, Grammar):
                raise ConfigError(
                    f"grammar is {self.grammar!r}; make one by Grammar.json_schema, .regex, .choice or .lark"
                )
            if self.ignore_eos:
                raise ConfigError("ignore_eos continues after the end token, but a grammar ends with it; leave one out")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _set_integer(self, name: str, lowest: int, allowed: str) -> None:
        self._set(name, integer(name, getattr(self, name), lowest, allowed))

    @property
    def warp(self) -> Warp:
        """The part that turns logits into probabilities."""
        if self.temperature == 0:
            return Warp()
        return Warp(self.temperature, self.top_k, self.top_p, self.min_p)

    def with_seed(self) -> "SamplingParams":
        """These options with a seed: their own, or a fresh one."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(63))

    def with_bad_word_ids(self, encode: Callable[[str], list[int]]) -> "SamplingParams":
        """These options with the texts among `bad_words` as token ids: as the start of a text and after a space."""
        if not any(isinstance(word, str) for word in self.bad_words):
            return self
        ids: dict[tuple[int, ...], None] = {}
        for word in self.bad_words:
            forms = (word, " " + word.lstrip()) if isinstance(word, str) else (word,)
            for form in forms:
                ids[tuple(encode(form) if isinstance(form, str) else form)] = None
        return replace(self, bad_words=tuple(i for i in ids if i))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `ConfigError` if an id lies outside a vocabulary."""
        words = [token for word in self.bad_words if not isinstance(word, str) for token in word]
        named = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": dict(self.logit_bias).keys(),
            "allowed_token_ids": self.allowed_token_ids or (),
            "bad_words": words,
        }
        for name, ids in named.items():
            for token in ids:
                if token >= vocab_size:
                    raise ConfigError(
                        f"{name} has token {token}, outside the vocabulary; allowed: 0 to {vocab_size - 1}"
                    )
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(self, name) or 0) > vocab_size:
                raise ConfigError(f"{name} is {getattr(self, name)}; the vocabulary has {vocab_size} tokens")
