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
class YarnRopeScaling:
    """YaRN: low rotary frequencies are divided by `factor`, high ones kept, a ramp between [peng23]."""

    factor: float
    original_context_len: int
    beta_fast: float = 32.0  # turns within the original context above which a frequency is kept
    beta_slow: float = 1.0  # below which it is divided by the whole factor
    rounds_range: bool = True  # the ramp begins and ends at whole dimensions

    def __post_init__(self) -> None:
        for name in ("factor", "beta_fast", "beta_slow"):
            check_positive(name, getattr(self, name))
        check_size("original_context_len", self.original_context_len)


@dataclass(frozen=True, kw_only=True)
class QueryTemperature:
    """Queries at position p are multiplied by 1 + beta ln(1 + floor(p / original_context_len))."""

    beta: float
    original_context_len: int

    def __post_init__(self) -> None:
        check_positive("beta", self.beta)
        check_size("original_context_len", self.original_context_len)


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding, half-split layout: dimension i turns with i + half of the rotated ones."""

    theta: float = 10_000.0
    linear_factor: float = 1.0  # positions are divided by this
    llama3: Llama3RopeScaling | None = None
    yarn: YarnRopeScaling | None = None
    divisors: tuple[float, ...] | None = None  # of each frequency: longrope's
    magnitude: float = 1.0  # of cosines and sines: those of YaRN and longrope are not 1
    num_rotated: int | None = None  # leading dimensions of a head that turn; None: all
    temperature: QueryTemperature | None = None

    def __post_init__(self) -> None:
        for name in ("theta", "linear_factor", "magnitude"):
            check_positive(name, getattr(self, name))
        for divisor in self.divisors or ():
            check_positive("a divisor of a rotary frequency", divisor)
        if self.num_rotated is not None and (self.num_rotated < 2 or self.num_rotated % 2):
            raise ConfigError(f"{self.num_rotated} dimensions of a head turn; allowed: an even number, 2 or above")
        if self.yarn is not None and self.theta == 1.0:
            raise ConfigError("theta is 1, which YaRN cannot stretch; allowed: any other number above 0")


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What differs from layer to layer."""

    window: int | None = None  # keys that a query sees, its own included; None: all before it
    rope: RopeSpec | None = None  # None: positions do not enter

    def __post_init__(self) -> None:
        if self.window is not None:
            check_size("window", self.window)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Sizes and options of one causal decoder: `num_layers` layers of attention and gated feed-forward.

    What all layers share is here; what differs from layer to layer is in `layers`.
    """

    family: str  # "llama", "qwen2", "gemma2" ...: for display; code reads the fields below
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
    layers: tuple[LayerSpec, ...] = ()  # at least one a layer; empty: all have `rope` and no window
    qkv_bias: bool = False  # Qwen2
    o_bias: bool = False
    mlp_bias: bool = False
    norm_kind: str = "rms"  # or "layer": the mean is removed
    norm_bias: bool = False  # of "layer"
    norms: str = "pre"  # where: one of NORM_PLACES
    qk_norm: bool = False  # Qwen3: a norm of q and k, before rope
    qk_norm_over: str = "head"  # over what: one of QK_NORMS
    activation: str = "silu"  # or "gelu_tanh": of the gate
    embedding_scale: float = 1.0  # of the embedding's rows
    residual_scale: float = 1.0  # of what a branch adds to the stream
    attention_scale: float | None = None  # of scores; None: head_dim ^ -1/2
    score_cap: float | None = None  # scores s become cap tanh(s / cap)
    logit_scale: float = 1.0
    logit_cap: float | None = None  # logits likewise, after the scale
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
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {short_repr(getattr(self, name))}; allowed: {', '.join(allowed)}")
        for name in ("embedding_scale", "residual_scale", "attention_scale", "score_cap", "logit_scale", "logit_cap"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        self._check_layers()

    def _check_layers(self) -> None:
        if self.layers and len(self.layers) < self.num_layers:
            raise ConfigError(f"{len(self.layers)} layers are described; the model has {self.num_layers}")
        for rope in self.ropes:
            rotated = self.head_dim if rope.num_rotated is None else rope.num_rotated
            if rotated > self.head_dim:
                raise ConfigError(f"{rotated} dimensions of a head turn; it has {self.head_dim}")
            if rope.divisors is not None and len(rope.divisors) != rotated // 2:
                raise ConfigError(
                    f"{len(rope.divisors)} divisors of rotary frequencies are given; {rotated} rotated dimensions have "
                    f"{rotated // 2} frequencies"
                )

    def layer(self, index: int) -> LayerSpec:
        """The `index`-th layer's own."""
        return self.layers[index] if self.layers else LayerSpec(rope=self.rope)

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The different rotary embeddings of the layers, in the order of their first layers."""
        if not self.layers:
            return (self.rope,)
        return tuple(dict.fromkeys(layer.rope for layer in self.layers[: self.num_layers] if layer.rope is not None))

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The different windows of the layers, likewise."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers[: self.num_layers])) or (None,)

    @property
    def score_scale(self) -> float:
        """What queries times keys are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def has_pre_norms(self) -> bool:
        """Whether branches read a norm of the stream, not the stream."""
        return self.norms != "post"

    @property
    def has_mlp_norm(self) -> bool:
        """Whether the feed-forward block has a norm of its own to read."""
        return self.norms in ("pre", "sandwich")

    @property
    def has_out_norms(self) -> bool:
        """Whether what a branch adds is normed first."""
        return self.norms in ("post", "sandwich")

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


def qk_norm_shape(spec: ModelSpec, num_heads: int) -> tuple[int, ...]:
    """Shape of the weight that norms `num_heads` heads of queries or keys."""
    shapes = {"head": (spec.head_dim,), "each_head": (num_heads, spec.head_dim)}
    return shapes.get(spec.qk_norm_over, (num_heads * spec.head_dim,))


NORM_PLACES = (
    "pre",  # before attention and before the feed-forward block
    "post",  # of what either adds to the stream
    "sandwich",  # both
    "parallel",  # one norm, read by both blocks, which then add to the stream together
)
QK_NORMS = (
    "head",  # over each head, one weight for all
    "each_head",  # over each head, a weight for each
    "all_heads",  # over all heads together
)
_CHOICES = {
    "norm_kind": ("rms", "layer"),
    "norms": NORM_PLACES,
    "qk_norm_over": QK_NORMS,
    "activation": ("silu", "gelu_tanh"),
}
_SIZES = (
    "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "context_len",
)  # fmt: skip
