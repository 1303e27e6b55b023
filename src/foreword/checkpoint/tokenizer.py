"""Text to token ids and back, over the `tokenizers` library: no import of transformers.

`decode` returns the text as it is: the option `clean_up_tokenization_spaces` of old tokenizers, which changes text
after the fact, is not applied.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from foreword.checkpoint.byte_level import to_bytes
from foreword.checkpoint.chat_template import ChatTemplate, Message
from foreword.checkpoint.text_stream import TextStream
from foreword.errors import ConfigError
from foreword.text_checks import check_unicode

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"  # SentencePiece's mark for a space


class Tokenizer:
    """A tokenizer with its special tokens and chat template.

    Args:
        backend: the `tokenizers.Tokenizer`; not shared with anyone who changes it.
        special_tokens: role ("bos_token", "eos_token", ...) -> the token's text.
        chat_template: the template's text, None when the model has none.
        source: the model's name for error messages.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        special_tokens: Mapping[str, str],
        chat_template: str | None,
        source: str,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens)
        self._source = source
        self._template = None if chat_template is None else ChatTemplate(chat_template, special_tokens, source)

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids that mean something; a model's embedding may have more rows."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, None when there is none."""
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end token; a model may have more (`Checkpoint.eos_token_ids`)."""
        return self._id_of("eos_token")

    def _id_of(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self.backend.token_to_id(token)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its text in the vocabulary, None when there is none."""
        return self.backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text; special tokens written out in it become those tokens.
            add_special_tokens: add what the model expects around a text (usually the begin token, or nothing).

        Raises:
            ConfigError: the text has half of a surrogate pair, which is what Python makes of bytes that are no UTF-8.
        """
        check_unicode("the text", text)
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_literally(self, text: str) -> list[int]:
        """Token ids of a text in which a special token that is written out stays what is written; nothing is added."""
        return self._literal_backend.encode(text, add_special_tokens=False).ids

    @cached_property
    def _literal_backend(self) -> "tokenizers.Tokenizer":
        backend = type(self.backend).from_str(self.backend.to_str())  # a copy: others go on using the first one
        backend.encode_special_tokens = True
        return backend

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Ids without a meaning are left out; bytes that are no UTF-8 become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def stream(self, skip_special_tokens: bool = True) -> TextStream:
        """A decoder that is fed ids as they are made."""
        return TextStream(self, skip_special_tokens)

    @property
    def chat_template(self) -> str | None:
        """The template's text, None when the model has none."""
        return None if self._template is None else self._template.text

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be turned into a prompt."""
        return self._template is not None

    def render_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, options: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt text of a conversation. See `ChatTemplate.render`.

        Raises:
            ConfigError: the model has no chat template, or its template refuses the messages.
        """
        if self._template is None:
            raise ConfigError(f"{self._source} has no chat template; give it plain text instead of messages")
        return self._template.render(messages, add_generation_prompt, options)

    def apply_chat_template(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, options: Mapping[str, Any] | None = None
    ) -> list[int]:
        """The prompt's token ids of a conversation; templates write the special tokens themselves."""
        return self.encode(self.render_chat(messages, add_generation_prompt, options), add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; b"" for special tokens and for ids without a meaning.

        SentencePiece's rule that a text loses its first space is not applied.
        """
        token = self.backend.id_to_token(token_id)
        if token is None or token_id in self.special_ids:
            return b""
        if token_id in self._added:
            return token.encode()
        if self.is_byte_fallback:
            match = _BYTE_TOKEN.fullmatch(token)
            return bytes([int(match.group(1), 16)]) if match else token.replace(_WORD_START, " ").encode()
        return to_bytes(token) if self._is_byte_level else token.replace(_WORD_START, " ").encode()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out when told to."""
        return frozenset(index for index, token in self._added.items() if token.special)

    def special_id(self, text: str) -> int | None:
        """The special token that this text is, as a whole; None for any other text."""
        token = self.backend.token_to_id(text)
        return token if token in self.special_ids else None

    @cached_property
    def _added(self) -> dict[int, Any]:
        return dict(self.backend.get_added_tokens_decoder())

    @cached_property
    def _decoder_kinds(self) -> frozenset[str]:
        """Types of the decoder's steps: "ByteLevel", "ByteFallback", ..."""
        if self.backend.decoder is None:
            return frozenset()
        state = json.loads(self.backend.decoder.__getstate__())
        return frozenset(step["type"] for step in [state, *state.get("decoders", [])])

    @property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in self._decoder_kinds

    @property
    def is_byte_fallback(self) -> bool:
        """Whether characters outside the vocabulary are written as byte tokens such as <0xE2>."""
        return "ByteFallback" in self._decoder_kinds

    def is_byte_token(self, token_id: int) -> bool:
        """Whether the token is one byte of a character, of a vocabulary with byte fallback."""
        token = self.backend.id_to_token(token_id) if self.is_byte_fallback else None
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None

    def is_silent(self, token_id: int, skip_special_tokens: bool = True) -> bool:
        """Whether `decode` leaves the token out: a special one where those are skipped, or an id without a meaning."""
        is_left_out = skip_special_tokens and token_id in self.special_ids
        return is_left_out or self.backend.id_to_token(token_id) is None
