"""Two tokenizers of the same texts: twelve letters one by one, and the same letters in pairs where they can be."""

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
