"""Noise as a pure function of where it is used.

Drawing a token is an argmax over `score + gumbel` [gumbel54, maddison14]. The Gumbel noise of a token depends only on (seed, sample
index, stream, position of the token being drawn, token id): never on the step, the drafter, the batch or the device.
So plain and speculative decoding meet the same noise at the same place and draw the same token, and a drafter may use
the target's noise to guess its draw.

The integer part is exact everywhere. A 64-bit row key is mixed from everything but the token id; the 32-bit hash of
(row key, token id) gives 23 random bits k, and u = (k + 1/2) 2^-23 lies strictly inside (0, 1), so that no noise is
infinite. Runtimes that draw in their own kernels compute the same k from the same row key.
"""

from enum import IntEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

_MASK64 = (1 << 64) - 1
_NUM_BITS = 23


class Stream(IntEnum):
    """Independent sources of noise. Matching shares `TARGET` between target and drafter."""

    TARGET = 0
    ACCEPT = 1
    RESIDUAL = 2
    DRAFT = 3


def row_key(seed: int, sample_index: int, stream: int, position: int) -> int:
    """Mix everything but the token id into 64 bits.

    Sample 0 uses the seed itself. `position` is that of the token being drawn, counted from the prompt's first token.
    """
    key = _splitmix64(seed & _MASK64)
    for part in (sample_index, stream, position):
        key = _splitmix64(key ^ part)
    return key


def token_bits(key: int, token_ids: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """23 random bits a token: two rounds of a 32-bit mixer [wellons18], keyed by the halves of the row key.

    `token_ids` is int32; so is the result. int32 products wrap, which is what the mixer wants.
    """
    low, high = _as_int32(key & 0xFFFFFFFF), _as_int32(key >> 32)
    mixed = _mix32(_mix32(token_ids ^ low) ^ high)
    return _shift_right(mixed, 32 - _NUM_BITS)


def gumbel(key: int, vocab_size: int, device: torch.device | str = "cpu") -> Float[Tensor, " vocab"]:
    """Standard Gumbel noise for every token id of one row, float32."""
    return gumbel_of(token_bits(key, torch.arange(vocab_size, dtype=torch.int32, device=device)))


def gumbel_of(bits: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Gumbel noise from random bits: -log(-log u), with u exact in float32."""
    uniform = (bits.to(torch.float32) + 0.5) * 2.0**-_NUM_BITS
    return -torch.log(-torch.log(uniform))


def uniform(key: int, index: int = 0) -> float:
    """One number strictly inside (0, 1), for accept decisions."""
    return (int(token_bits(key, torch.tensor([index], dtype=torch.int32))[0]) + 0.5) * 2.0**-_NUM_BITS


def _splitmix64(x: int) -> int:
    """Finaliser of the splitmix64 generator [steele14]."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _mix32(x: Tensor) -> Tensor:
    x = x ^ _shift_right(x, 16)
    x = x * 0x7FEB352D
    x = x ^ _shift_right(x, 15)
    x = x * _as_int32(0x846CA68B)
    return x ^ _shift_right(x, 16)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's own keeps the sign."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _as_int32(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x
