"""Noise as a pure function of where it is used.

Sampling a token is an argmax over `score + gumbel` [gumbel54, maddison14]. The Gumbel noise of a token depends only on
(seed, sample index, stream, position of the token being sampled, token id): never on the step, the drafter, the batch
or the device. So plain and speculative decoding use the same noise at the same position and sample the same token, and a
drafter may use the target's noise to predict its sample.

The integer part is exact everywhere. A 64-bit row key is mixed from everything but the token id; the 32-bit hash of
(row key, token id) gives 23 random bits k, and u = (k + 1/2) 2^-23 lies strictly inside (0, 1), so that no noise is
infinite. Runtimes that draw in their own kernels compute the same k from the same row key.
"""

from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float, Int, UInt32
from torch import Tensor

_MASK64 = (1 << 64) - 1
_NUM_BITS = 23
_FACTORS = (0x7FEB352D, 0x846CA68B)
MAX_NOISE = 16.64  # above the largest Gumbel noise there is, -log(-log(1 - 2^-24)) = 24 log 2


class Stream(IntEnum):
    """Independent sources of noise. Matching shares `TARGET` between target and drafter."""

    TARGET = 0
    ACCEPT = 1
    RESIDUAL = 2
    DRAFT = 3


def row_key(seed: int, sample_index: int, stream: int, position: int, *more: int) -> int:
    """Mix everything but the token id into 64 bits.

    Sample 0 uses the seed itself. `position` is that of the token being drawn, counted from the prompt's first token.
    Streams whose numbers may serve once only are keyed by `more` as well (see `Sampler.step_key`).
    """
    key = _splitmix64(seed & _MASK64)
    for part in (sample_index, stream, position, *more):
        key = _splitmix64(key ^ part)
    return key


def token_bits(key: int, token_ids: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """23 random bits per token: two rounds of a 32-bit mixer [wellons18], keyed by the halves of the row key.

    `token_ids` is int32; so is the result. int32 products wrap, which is what the mixer wants.
    """
    if token_ids.device.type == "cpu":
        return torch.from_numpy(_bits_of_words(key, token_ids.numpy().view(np.uint32)).view(np.int32))
    return _bits_of_tensor(key, token_ids)


def gumbel(key: int, vocab_size: int, device: torch.device | str = "cpu") -> Float[Tensor, " vocab"]:
    """Standard Gumbel noise for every token id of one row, float32."""
    return gumbel_of(token_bits(key, torch.arange(vocab_size, dtype=torch.int32, device=device)))


def gumbel_of(bits: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Gumbel noise from random bits: -log(-log u), with u exact in float32."""
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-_NUM_BITS)
    return uniform.log_().neg_().log_().neg_()


def uniform(key: int, index: int = 0) -> float:
    """One number strictly inside (0, 1), for accept decisions."""
    return (int(token_bits(key, torch.tensor([index], dtype=torch.int32))[0]) + 0.5) * 2.0**-_NUM_BITS


def uniform_of(key: int) -> float:
    """One number strictly inside (0, 1), from the row key alone: 52 random bits, for float64 probabilities."""
    return ((key >> 12) + 0.5) * 2.0**-52


def _splitmix64(x: int) -> int:
    """Finaliser of the splitmix64 generator [steele14]."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _bits_of_words(key: int, words: UInt32[np.ndarray, " n"]) -> UInt32[np.ndarray, " n"]:
    """The mixer on unsigned words; on a CPU this takes a third of the time of torch's signed ones."""
    words = words ^ np.uint32(key & 0xFFFFFFFF)
    for whiten in (key >> 32, 0):
        words ^= words >> np.uint32(16)
        words *= np.uint32(_FACTORS[0])
        words ^= words >> np.uint32(15)
        words *= np.uint32(_FACTORS[1])
        words ^= words >> np.uint32(16)
        words ^= np.uint32(whiten)
    return words >> np.uint32(32 - _NUM_BITS)


def _bits_of_tensor(key: int, words: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The same on any device, where words are signed."""
    words = words ^ _as_int32(key & 0xFFFFFFFF)
    for whiten in (key >> 32, 0):
        words ^= _shift_right(words, 16)
        words *= _as_int32(_FACTORS[0])
        words ^= _shift_right(words, 15)
        words *= _as_int32(_FACTORS[1])
        words ^= _shift_right(words, 16)
        words ^= _as_int32(whiten)
    return _shift_right(words, 32 - _NUM_BITS)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's own keeps the sign."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def _as_int32(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x
