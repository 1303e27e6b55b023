"""The alphabet of byte-level vocabularies [gpt2]: each byte has one printable character.

Printable bytes stand for themselves; the others, in order, are the characters from U+0100 on. So a space is "Ġ".
"""

from functools import cache


@cache
def byte_of_char() -> dict[str, int]:
    """Character -> byte, all 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def to_bytes(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for; a token with other characters stands for itself."""
    table = byte_of_char()
    try:
        return bytes(table[char] for char in token)
    except KeyError:
        return token.encode()
