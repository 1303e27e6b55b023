"""Small tokenizers: two of the same twelve letters, one by one and in pairs where they can be; and byte-level ones."""

from collections.abc import Iterable, Sequence

import tokenizers

LETTERS = "abcdefghij k"


class SingleTokenizer:
    """A letter a token: the ids of a toy target with a vocabulary of 12."""

    vocab_size = len(LETTERS)

    def encode(self, text, add_special_tokens=True):
        return [LETTERS.index(letter) for letter in text]

    def decode(self, ids, skip_special_tokens=True):
        return "".join(LETTERS[i] for i in ids)


class PairTokenizer:
    """Two letters a token, from the left; one left over is a token of its own."""

    vocab_size = len(LETTERS) + len(LETTERS) ** 2

    def encode(self, text, add_special_tokens=True):
        ids = [LETTERS.index(letter) for letter in text]
        pairs = [12 + 12 * a + b for a, b in zip(ids[::2], ids[1::2], strict=False)]
        return pairs + ids[-1:] if len(ids) % 2 else pairs

    def decode(self, ids, skip_special_tokens=True):
        return "".join(LETTERS[i] if i < 12 else LETTERS[(i - 12) // 12] + LETTERS[(i - 12) % 12] for i in ids)


def byte_level_backend(pieces: Iterable[str], words: Sequence[str], end: str) -> tokenizers.Tokenizer:
    """The pieces (bytes in the byte-level alphabet), words made of them by merges, and an end token, last."""
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for word in words:
        letters = word.replace(" ", "\u0120")
        for i in range(1, len(letters)):
            if letters[: i + 1] not in vocab:
                vocab[letters[: i + 1]] = len(vocab)
                merges.append((letters[:i], letters[i]))
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(end, special=True)])
    return backend
