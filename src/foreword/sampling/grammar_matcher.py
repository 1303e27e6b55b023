"""Grammars: JSON schema, regular expression, choice, Lark. The answer can be nothing else.

A matcher of `llguidance` tells which tokens may come next. It follows whatever path is asked about: what two paths
share stays consumed, the rest is rolled back. So a tree's nodes are each masked by their own history, and a draft that
is dropped leaves nothing behind. End tokens are never fed to it: they are allowed where the grammar may end, and
nothing comes after them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from foreword.errors import ConfigError
from foreword.sampling.grammar import Grammar, one_line

_INSTALL = "grammars need the package llguidance, which is not installed: pip install 'foreword[grammar]'"
_MAX_MADE = 32  # compiled grammars kept


class GrammarTokenizer(Protocol):
    """What grammars need of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text; b"" for special tokens and ids without a meaning."""
        ...

    def encode_literally(self, text: str) -> list[int]:
        """Token ids of a text; a special token that is written out in it stays what is written."""
        ...


class GrammarCompiler:
    """Makes matchers for one vocabulary. Making it reads the whole vocabulary once (0.3 s for 49,152 tokens)."""

    def __init__(self, tokenizer: GrammarTokenizer, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        if not end_token_ids:
            raise ConfigError("this model has no end token, which a grammar needs to end the answer")
        try:
            import llguidance
        except ImportError as error:
            raise ConfigError(_INSTALL) from error
        self._matcher = llguidance.LLMatcher
        self._vocab_size, self._end_ids = vocab_size, tuple(end_token_ids)
        vocabulary: Any = _Vocabulary(tokenizer, vocab_size, end_token_ids)
        self._tokenizer = llguidance.LLTokenizer(vocabulary, n_vocab=vocab_size, eos_token=list(end_token_ids))
        self._made: OrderedDict[Grammar, Any] = OrderedDict()  # the last ones used, the newest at the end

    def compile(self, grammar: Grammar) -> "GrammarMatcher":
        """A grammar matcher at the start of `grammar`; `ConfigError` says what is wrong with the grammar."""
        made = self._made.pop(grammar, None)
        if made is None:
            source = grammar.for_matcher(self._matcher)
            problem = self._matcher.validate_grammar(source, self._tokenizer)
            if problem and not problem.startswith("WARNING"):
                raise ConfigError(f"the {grammar.kind} of the grammar cannot be used: {one_line(problem)}")
            made = self._matcher(self._tokenizer, source, log_level=0)  # errors say what is wrong, not stderr
            # Some that are valid cannot be followed even to the first token: told now, not in the first step.
            GrammarMatcher(made.deep_copy(), self._vocab_size, self._end_ids).allowed(())
        self._made[grammar] = made
        while len(self._made) > _MAX_MADE:
            self._made.popitem(last=False)
        return GrammarMatcher(made.deep_copy(), self._vocab_size, self._end_ids)


class GrammarMatcher:
    """A grammar and a state in it, which moves to any path of tokens.

    Every method is a function of its argument alone. A path runs from the first token of the answer.
    """

    def __init__(self, matcher: Any, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._matcher, self._vocab_size, self._end_ids = matcher, vocab_size, end_ids
        self._path: list[int] = []  # what the matcher has consumed

    def copy(self) -> "GrammarMatcher":
        """Another one, which shares nothing that changes."""
        made = GrammarMatcher(self._matcher.deep_copy(), self._vocab_size, self._end_ids)
        made._path = list(self._path)
        return made

    def allowed(self, path: Sequence[int]) -> Bool[Tensor, " vocab"] | None:
        """Which tokens may follow `path`; None where the grammar does not allow the path itself."""
        if not self._go(path):
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return torch.from_numpy(np.unpackbits(bits, count=self._vocab_size, bitorder="little").astype(bool))

    def allows(self, path: Sequence[int]) -> bool:
        """Whether an answer may begin with `path`; an end token may close it."""
        if path and path[-1] in self._end_ids:
            return self._go(path[:-1]) and self._matcher.is_accepting()
        return self._go(path)

    def forced(self, path: Sequence[int]) -> list[int]:
        """The only text that may follow `path`, as the tokenizer writes it; an end token where nothing else may.

        Where there is such a text, `allowed` allows only its first token: a text without a choice is written in one way.
        """
        if not self._go(path):
            return []
        tokens = self._matcher.compute_ff_tokens()
        is_whole = self._go([*path, *tokens]) and self._matcher.is_stopped()
        return [*tokens, self._end_ids[0]] if is_whole else tokens

    def _go(self, path: Sequence[int]) -> bool:
        """Move to `path`, or as far along it as the grammar allows: then False."""
        path = list(path)
        shared = min(len(path), len(self._path))
        while path[:shared] != self._path[:shared]:
            shared -= 1
        if shared < len(self._path):
            self._matcher.rollback(len(self._path) - shared)
        num_more = self._matcher.try_consume_tokens(path[shared:]) if shared < len(path) else 0
        self._check()
        self._path = path[: shared + num_more]
        return len(self._path) == len(path)

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = one_line(self._matcher.get_error())
            raise ConfigError(
                f"the grammar cannot be followed: {reason}; give a smaller one, or one that does not refer to itself without end"
            )


class _Vocabulary:
    """A tokenizer as llguidance reads it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: GrammarTokenizer, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end_token_ids[0]
        self.special_token_ids = list(end_token_ids)
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocab_size)]

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode_literally(text.decode() if isinstance(text, bytes) else text)
