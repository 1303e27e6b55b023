"""What a model is and how it is run, as plain data.

`ModelSpec` describes one stack of transformer layers. A family (Llama, Qwen2, Qwen3) is a set of values in it, never a
subclass: the checkpoint readers fill it in, the runtimes build from it, drafters reuse it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

from foreword.errors import ConfigError, UnknownNameError

RuntimeName = Literal["auto", "torch", "native"]
DtypeName = Literal["auto", "float32", "bfloat16", "int8", "int4"]

RUNTIMES: tuple[str, ...] = ("auto", "torch", "native")
DTYPES: tuple[str, ...] = ("auto", "float32", "bfloat16", "int8", "int4")
TORCH_DTYPES = ("float32", "bfloat16")
KV_DTYPES: tuple[str, ...] = ("auto", "float32", "bfloat16")

STEADY_METHOD = "ngram"  # the default drafter where words depend on drafts: those of `auto` depend on the clock
DEFAULT_SPECULATIVE_TOKENS = 7  # of drafters that do not say another number
MAX_SPECULATIVE_TOKENS = 512  # drafted nodes a step: as many as the largest chunk of a prompt in one pass


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


def short_repr(value: Any, most: int = 60) -> str:
    """A value for a message, however long it is: at most so many characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, or too deep
        return f"a very long {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


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

    family: str  # "llama", "qwen2" or "qwen3": for people; code reads the fields below
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
        """Rows of the head: tokens that a pass can name."""
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


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """Which drafter, and its settings: the keys of vLLM's `speculative_config`, and further ones like them.

    `method` may name several drafters, joined by commas: "suffix,draft_model=PATH".
    """

    method: str = "auto"
    model: str | None = None  # folder, file or hub id of a drafter with weights
    num_speculative_tokens: int | None = None  # most drafted nodes a step; None: as many as the drafter's own default
    prompt_lookup_max: int = 3  # ngram: longest match looked for
    prompt_lookup_min: int = 1  # ngram: shortest
    suffix_decoding_max_tree_depth: int = 24  # suffix: longest string counted; matches are shorter by one
    suffix_decoding_max_spec_factor: float = 4.0  # suffix: nodes drafted for each token of the match
    suffix_decoding_min_token_prob: float = 0.1  # suffix: less likely nodes are left out
    suffix_decoding_tree: bool = True  # suffix: several continuations at once; False: the likeliest chain
    suffix_decoding_max_cached_requests: int = 0  # suffix: past answers kept as a source; 0 for none
    suffix_decoding_max_cached_tokens: int = 200_000  # suffix: most tokens of past answers
    suffix_decoding_file: str | None = None  # suffix: past answers are read from here and added to it
    recycling_top_k: int = 8  # recycling: candidates kept for each token
    recycling_per_request: bool = False  # recycling: forget the table at the end of each request
    lookahead_window: int = 2  # lookahead: columns of the window (W)
    lookahead_ngram: int = 3  # lookahead: tokens of an n-gram (N)
    lookahead_guesses: int = 5  # lookahead: n-grams kept and tried for each token (G)
    lookahead_pool_from_prompt: bool = True  # lookahead: begin with the prompt's n-grams
    exit_layer: int | None = None  # layerskip: layers of the target that draft; None for a quarter
    # draft_model, layerskip, eagle*: candidates a level; 1 drafts a chain. None: 1, eagle* as their card says
    draft_tree_width: int | None = None
    draft_tree_depth: int | None = None  # eagle*: most tokens in a row in a tree; None: as their card says
    draft_vocab: str | None = None  # eagle, eagle2, medusa*: .pt or .json list of the tokens to draft [frspec25]
    draft_confidence_threshold: float = 0.0  # draft_model, layerskip: stop a chain where the drafter is less sure
    draft_dtype: str | None = None  # draft_model, eagle* on native: int8, int4; None: the target's, eagle* int4
    draft_noise: str = "shared"  # whose noise draws guesses, as the verifier asks: the target's, or their "own"
    cascade_merge: bool = False  # several drafters: merge their trees; False: the first worthwhile one
    cascade_threshold: float = 0.5  # several drafters: expected accepted tokens that make a proposal worthwhile

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Path):
                object.__setattr__(self, field.name, str(value))
            else:
                _check_type(field.name, value, field.type)
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and not lowest <= value <= _HIGHEST.get(name, value):
                bound = f"{lowest} to {_HIGHEST[name]}" if name in _HIGHEST else f"{lowest} or above"
                raise ConfigError(f"{name} is {value!r}; allowed: a whole number, {bound}")
        for name, highest in _FRACTIONS.items():
            value = getattr(self, name)
            if not 0 <= value <= highest:
                raise ConfigError(f"{name} is {value!r}; allowed: a number from 0 to {highest:g}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max {self.prompt_lookup_max}; "
                f"allowed: 1 <= prompt_lookup_min <= prompt_lookup_max"
            )
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) is not None and value not in choices:
                raise ConfigError(f"{name} is {value!r}; allowed: {', '.join(choices)}")


_SIZES = (
    "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "context_len",
)  # fmt: skip
_TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "None"}


def _check_type(name: str, value: Any, annotation: Any) -> None:
    """`ConfigError` for a value of another type; a whole number is a number too, true and false are none."""
    types = get_args(annotation) or (annotation,)
    given = float if float in types and type(value) is int else type(value)
    if given not in types:
        raise ConfigError(f"{name} is {value!r}; allowed: {' or '.join(_TYPE_NAMES[t] for t in types)}")


_LOWEST = {
    "num_speculative_tokens": 0,
    "prompt_lookup_max": 1,
    "prompt_lookup_min": 1,
    "suffix_decoding_max_tree_depth": 2,
    "suffix_decoding_max_cached_requests": 0,
    "suffix_decoding_max_cached_tokens": 1,
    "recycling_top_k": 1,
    "lookahead_window": 1,
    "lookahead_ngram": 2,
    "lookahead_guesses": 1,
    "exit_layer": 1,
    "draft_tree_width": 1,
    "draft_tree_depth": 1,
}
_HIGHEST = {
    "num_speculative_tokens": MAX_SPECULATIVE_TOKENS,
    "recycling_top_k": 64,  # the table holds a column a candidate for every token of the vocabulary
}
_FRACTIONS = {
    "suffix_decoding_max_spec_factor": 64.0,
    "suffix_decoding_min_token_prob": 1.0,
    "draft_confidence_threshold": 1.0,
    "cascade_threshold": 1e6,
}

_CHOICES = {"draft_noise": ("shared", "own"), "draft_dtype": ("int8", "int4")}

# Names that users of other engines know, for the same thing.
DRAFT_CONFIG_ALIASES = {
    "num_assistant_tokens": "num_speculative_tokens",  # Hugging Face
    "prompt_lookup_num_tokens": "num_speculative_tokens",  # Hugging Face
    "max_matching_ngram_size": "prompt_lookup_max",  # Hugging Face
    "max_ngram_size": "prompt_lookup_max",  # OpenVINO
    "assistant_model": "model",  # Hugging Face
    "draft_model": "model",
    "assistant_confidence_threshold": "draft_confidence_threshold",  # Hugging Face
    "assistant_early_exit": "exit_layer",  # Hugging Face
    "speculative_eagle_topk": "draft_tree_width",  # SGLang
    "speculative_num_steps": "draft_tree_depth",  # SGLang
    "speculative_token_map": "draft_vocab",  # SGLang
}


_LOOKUP = ("prompt_lookup_max", "prompt_lookup_min")


def parse_draft_config(options: Mapping[str, Any], default_method: str = DraftConfig.method) -> DraftConfig:
    """Settings from a `speculative_config` mapping; an unknown key is an error that names the nearest known one.

    Without `method` it is `default_method`, or ngram where a setting of prompt lookup is given.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"the drafter's settings are {options!r}; allowed: a name, a mapping or a DraftConfig")
    names = {field.name for field in fields(DraftConfig)}
    values: dict[str, Any] = {}
    for key, value in options.items():
        name = DRAFT_CONFIG_ALIASES.get(key, key)
        if name not in names:
            raise UnknownNameError("key of speculative_config", key, names | DRAFT_CONFIG_ALIASES.keys())
        if name in values:
            raise ConfigError(f"speculative_config gives {name} twice, once as {key}; leave one out")
        values[name] = value
    is_lookup = any(key.startswith("prompt_lookup") or DRAFT_CONFIG_ALIASES.get(key) in _LOOKUP for key in options)
    return DraftConfig(**{"method": "ngram" if is_lookup else default_method, **values})


def draft_config(
    drafter: str | DraftConfig | Mapping[str, Any],
    num_speculative_tokens: int | None = None,
    default_method: str = DraftConfig.method,
) -> DraftConfig:
    """Settings from NAME, NAME=PATH, several of them joined by commas, a mapping, or settings.

    `num_speculative_tokens` wins where given, `default_method` where no method is named.
    """
    if isinstance(drafter, str) and "," in drafter:
        config = DraftConfig(method=drafter)
    elif isinstance(drafter, str):
        method, _, model = drafter.partition("=")
        config = DraftConfig(method=method, model=model or None)
    else:
        config = drafter if isinstance(drafter, DraftConfig) else parse_draft_config(drafter, default_method)
    return config if num_speculative_tokens is None else replace(config, num_speculative_tokens=num_speculative_tokens)
