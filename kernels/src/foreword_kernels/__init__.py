"""CPU kernels of foreword: a batch-invariant int8 and int4 transformer decoder.

`foreword.runtime.native_runtime` is the way to use them; this package holds no policy.
"""

import atexit

from foreword_kernels._native import (
    GROUP,
    LANES,
    Decoder,
    KvCache,
    Matrix,
    Projection,
    Rope,
    Shape,
    ThreadPool,
    WeightBytes,
    Weights,
    available_isas,
    gumbel,
    matrix,
    pack_int4,
    pack_int8,
    read_bandwidth,
    wait_for_long_calls,
)

atexit.register(wait_for_long_calls)

__all__ = [
    "GROUP",
    "LANES",
    "Decoder",
    "KvCache",
    "Matrix",
    "Projection",
    "Rope",
    "Shape",
    "ThreadPool",
    "WeightBytes",
    "Weights",
    "available_isas",
    "gumbel",
    "matrix",
    "pack_int4",
    "pack_int8",
    "read_bandwidth",
]
