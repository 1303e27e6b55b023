"""Shapes of tiny models, each a function of one number: sizes, families, rotary embeddings, files.

Number 0 is the plain one that most tests share; the fuzz takes all of them.
"""

import random
from dataclasses import dataclass

import torch

from foreword.config import Llama3RopeScaling, ModelSpec, RopeSpec
from tests.support.tiny_models import FAMILIES, tiny_spec

MIN_VOCAB_SIZE = 40  # the alphabet and words of support.tiny_llm, padded


@dataclass(frozen=True)
class TinyShape:
    """A target, how its files are written and how its caches are held."""

    number: int
    spec: ModelSpec
    draft_context_len: int
    num_shards: int = 1
    dtype: torch.dtype = torch.float32
    native_dtype: str = "int8"
    kv_dtype: str | None = None

    def __str__(self) -> str:
        s = self.spec
        return (
            f"{s.family} {s.num_layers} layers, hidden {s.hidden_size}, heads {s.num_heads}/{s.num_kv_heads} of {s.head_dim}, "
            f"vocabulary {s.vocab_size}, context {s.context_len}, {self.num_shards} files of {self.dtype}, "
            f"native {self.native_dtype}, kv {self.kv_dtype}"
        )


def tiny_shape(number: int = 0) -> TinyShape:
    """The shape of this number."""
    if number == 0:
        # An untied head: a tied one of random weights says the token that it has just read.
        spec = tiny_spec("llama", num_layers=2, vocab_size=MIN_VOCAB_SIZE, context_len=128, tied_head=False)
        return TinyShape(0, spec, draft_context_len=64)
    rng = random.Random(f"shape {number}")
    num_kv_heads = rng.choice((1, 2, 3))
    num_heads = num_kv_heads * rng.choice((1, 1, 2, 3, 4, 8))
    context_len = rng.choice((32, 48, 100, 128, 200))
    spec = tiny_spec(
        rng.choice(FAMILIES),
        num_layers=rng.randint(1, 3),
        hidden_size=rng.choice((8, 24, 33, 48, 64, 65, 130)),
        intermediate_size=rng.choice((8, 31, 80, 96, 129)),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=rng.choice((2, 6, 8, 16, 32, 64, 128)) if num_heads < 8 else rng.choice((2, 8, 16)),
        vocab_size=rng.choice((MIN_VOCAB_SIZE, 41, 63, 64, 97, 150, 300)),
        context_len=context_len,
        rope=_rope(rng),
        tied_head=rng.random() < 0.3,
    )
    return TinyShape(
        number,
        spec,
        draft_context_len=rng.choice((context_len, context_len // 2)),
        num_shards=rng.choice((1, 1, 2)),
        dtype=rng.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16)),
        native_dtype=rng.choice(("int8", "int8", "int4")),
        kv_dtype=rng.choice((None, "float32", "bfloat16")),
    )


def _rope(rng: random.Random) -> RopeSpec:
    kind = rng.choice(("default", "linear", "llama3"))
    theta = rng.choice((100.0, 10_000.0, 500_000.0))
    if kind == "linear":
        return RopeSpec(theta=theta, linear_factor=rng.choice((2.0, 4.0)))
    if kind == "llama3":
        scaling = Llama3RopeScaling(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_len=64)
        return RopeSpec(theta=theta, llama3=scaling)
    return RopeSpec(theta=theta)
