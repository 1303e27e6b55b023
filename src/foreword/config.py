"""What a model is and how it is run, as plain data.

`ModelSpec` describes one stack of transformer layers. A family (Llama, Qwen2, Qwen3) is a set of values in it, never a
subclass: the checkpoint readers fill it in, the runtimes build from it, drafters reuse it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from foreword.errors import ConfigError
from foreword.validate import shown as short_repr

RuntimeName = Literal["auto", "torch", "native"]
DtypeName = Literal["auto", "float32", "bfloat16", "int8", "int4"]

RUNTIMES: tuple[str, ...] = ("auto", "torch", "native")
DTYPES: tuple[str, ...] = ("auto", "float32", "bfloat16", "int8", "int4")
TORCH_DTYPES = ("float32", "bfloat16")
KV_DTYPES: tuple[str, ...] = ("auto", "float32", "bfloat16")

STEADY_METHOD = "ngram"  # the default drafter where tokens depend on drafts: those of `auto` depend on measured times
DEFAULT_SPECULATIVE_TOKENS = 7  # of drafters that set no other number
MAX_SPECULATIVE_TOKENS = 512  # drafted nodes per step: as many as the largest chunk of a prompt in one pass


MAX_SIZE = 2**31 - 1  # of any dimension: the kernels count in 32 bits
MAX_EPS = 1.0


def check_size(name: str, value: Any) -> None:
    """`ConfigError` unless it is a whole number from 1 to `MAX_SIZE`."""
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise ConfigError(f"{name} is {short_repr(value)}; allowed: a whole number, 1 to {MAX_SIZE}")


def check_positive(name: str, value: Any, highest: float = math.inf) -> None:
    """`ConfigError` unless it is a finite number above 0, and not above `highest`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= highest or not is_finite(value):
        most = "" if highest == math.inf else f", at most {highest:g}"
        raise ConfigError(f"{name} is {short_repr(value)}; allowed: a finite number above 0{most}")


def is_finite(value: float) -> bool:
    """Whether it is a number that a float holds: no NaN, no infinity, no whole number beyond the largest float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


@dataclass(frozen=True, kw_only=True)
class Llama3RopeScaling:
    """Llama 3's stretching of low rotary frequencies [llama3]."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            check_positive(name, getattr(self, name))
        check_size("original_context_len", self.original_context_len)
        if self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                f"high_freq_factor is {self.high_freq_factor:g} and low_freq_factor {self.low_freq_factor:g}; "
                f"allowed: the first above the second"
            )


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding, half-split layout (dimension i turns with i + head_dim / 2)."""

    theta: float = 10_000.0
    linear_factor: float = 1.0  # positions are divided by this
    llama3: Llama3RopeScaling | None = None

    def __post_init__(self) -> None:
        check_positive("theta", self.theta)
        check_positive("linear_factor", self.linear_factor)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Sizes and options of one causal decoder: `num_layers` pre-norm attention + SwiGLU layers."""

    family: str  # "llama", "qwen2" or "qwen3": for display; code reads the fields below
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # rows of the embedding, which may be padded beyond the tokenizer's ids
    context_len: int  # most tokens, prompt and answer together
    norm_eps: float = 1e-5
    rope: RopeSpec = RopeSpec()
    qkv_bias: bool = False  # Qwen2
    qk_norm: bool = False  # Qwen3: RMSNorm over each head of q and k, before rope
    tied_head: bool = False  # the head is the embedding
    # What EAGLE's layer does otherwise; methods that draft with features set these, no checkpoint of a model does.
    joins_embedding: bool = False  # layer 0 attends with [norm(embedding), norm(input)]: every pass brings `inputs` too
    norms_residual: bool = False  # with it: the residual stream begins with norm(input), not with the input
    has_first_norm: bool = True  # layer 0 norms what its attention reads
    has_final_norm: bool = True  # the head reads norm(x), not x
    head_size: int | None = None  # rows of the head, where not as many as the embedding has
    num_counted_parameters: int | None = None  # of a model whose layers are not those of these sizes

    def __post_init__(self) -> None:
        for name in _SIZES:
            check_size(name, getattr(self, name))
        if self.head_size is not None:
            check_size("head_size", self.head_size)
        check_positive("norm_eps", self.norm_eps, MAX_EPS)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.num_heads} query heads cannot be shared by {self.num_kv_heads} key-value heads; "
                f"the first must be a multiple of the second"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; rotary embedding needs an even one")

    @property
    def num_logits(self) -> int:
        """Rows of the head: tokens that a pass can return."""
        return self.vocab_size if self.head_size is None else self.head_size

    def qkv_input_size(self, layer: int) -> int:
        """Values that a layer's query, key and value maps read."""
        return 2 * self.hidden_size if self.joins_embedding and layer == 0 else self.hidden_size

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_parameters(self) -> int:
        """Weights of the layers, embedding and head (a tied head counts once)."""
        if self.num_counted_parameters is not None:
            return self.num_counted_parameters
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        joined = self.hidden_size * (1 + self.head_dim * (self.num_heads + 2 * self.num_kv_heads))
        embeddings = self.hidden_size * (self.vocab_size + (0 if self.tied_head else self.num_logits))
        return self.num_layers * layer + embeddings + self.hidden_size + (joined if self.joins_embedding else 0)

    @property
    def num_streamed_parameters(self) -> int:
        """Weights that one pass reads: the layers and the head, not the embedding's rows."""
        embedding = 0 if self.tied_head else self.vocab_size * self.hidden_size
        return self.num_parameters - embedding

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Memory that one cached position takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


_SIZES = (
    "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "context_len",
)  # fmt: skip
