"""The blocks every model is built from, whichever runtime computes them.

    Decoder      a stack of transformer layers, with its embedding, final norm and head where it has them
    Projection   a linear map (Medusa's heads, EAGLE's fc)
    KVCache      the keys and values of many requests

A target, a draft model, an EAGLE layer are all decoders. A drafter never knows which runtime it runs on, so a faster
runtime speeds up all of them. A runtime may fuse embedding, layers, norm, head and draw into one pass.

Tensor names that a runtime asks a `WeightSource` for (`i` counts layers from 0; weights are (out, in)):

    embed.weight  norm.weight  head.weight (absent when tied)
    layers.{i}.attn_norm.weight  layers.{i}.mlp_norm.weight
    layers.{i}.{q,k,v,o}.weight  layers.{i}.{q,k,v}.bias (Qwen2)  layers.{i}.{q,k}_norm.weight (Qwen3)
    layers.{i}.{gate,up,down}.weight
    layers.0.hidden_norm.weight (`joins_embedding`: of the input; layers.0.attn_norm is then that of the embedding)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from foreword.config import ModelSpec
from foreword.sampling.sampler import Draw
from foreword.tree.pack import PackedBatch

ROW_GROUP = 16  # rows are saved and loaded in whole groups of so many, from a multiple of it on


class WeightSource(Protocol):
    """Where parameters come from, tensor by tensor."""

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes when the weights do; keys caches of converted weights."""
        ...

    def has_tensor(self, name: str) -> bool:
        """Whether there is a tensor of this name (biases and heads are optional)."""
        ...

    def tensor(self, name: str) -> Tensor:
        """The tensor, in the dtype it is stored in. May be memory-mapped: never write to it."""
        ...


@dataclass(frozen=True)
class Need:
    """What a pass must return, per node: the union of what verifier and drafter need.

    `taps` are auxiliary hidden states by layer index: tap i is the input of layer i (0 is the embedding, `num_layers` the last
    layer's output before the final norm), Hugging Face's `hidden_states[i]` but for the last.
    """

    draws: Sequence[Draw] = ()
    names: Int[np.ndarray, " rows"] | None = (
        None  # int32: the token of each row of the head, whose noise it is in draws
    )
    logits: Sequence[int] = ()  # nodes whose logits are wanted
    top_k: int = 0  # how many top tokens to return at each node of `top_nodes`
    top_nodes: Sequence[int] = ()
    taps: tuple[int, ...] = ()  # for all nodes
    hidden: bool = False  # the final norm's output, for all nodes


@dataclass(eq=False)
class PassOutput:
    """What a pass returns. Tensors live until the next pass of the same decoder; `taps` and `hidden` may be kept."""

    choices: list[int] = field(default_factory=list)  # the sampled row of the head, of each of `need.draws`
    logits: Float[Tensor, "wanted vocab"] | None = None  # float32, in the order of `need.logits`
    top_ids: Int[Tensor, "wanted k"] | None = None  # most probable first, in the order of `need.top_nodes`
    top_logprobs: Float[Tensor, "wanted k"] | None = None
    taps: Float[Tensor, "nodes taps hidden"] | None = None
    hidden: Float[Tensor, "nodes hidden"] | None = None


@dataclass(frozen=True)
class Chains:
    """Tokens to draft one after the other, for some requests: each pass reads the token that the last one drew."""

    token_ids: Sequence[int]  # of each request, the first token to read
    draws: Sequence[Sequence[Draw]]  # of each request, one for each token that may be drawn; `node` means nothing
    names: Int[np.ndarray, " rows"] | None = None  # int32: the token of each row of the head; None: rows are tokens
    threshold: float = 0.0  # a chain ends with a token whose pass gives its top-1 token less than this probability
    top_k: int = 1  # most probable tokens to name at each step
    slots: Sequence[int] = ()  # of each request, in the cache
    carries: str = "nothing"  # to the next pass as its input: "nothing", "stream" (the last tap) or "hidden"


@dataclass(frozen=True)
class ChainStep:
    """One pass of a chain."""

    token_id: int  # drawn, and read by the next pass
    top_ids: list[int]  # most probable first
    top_probs: list[float]


class KVCache(Protocol):
    """Keys and values of many requests, one sequence slot each.

        [0, length)              committed positions
        [length, length + n)     scratch of the pass under way: row length + i belongs to node i of the request

    A node's position is length + depth, not its row, so committing a path moves rows and nothing else.
    """

    def open(self, capacity: int) -> int:
        """Reserve a sequence slot of at least `capacity` rows; returns its number."""
        ...

    def fork(self, slot: int, length: int, capacity: int) -> int:
        """A new region that begins with copies of the first `length` committed rows of `slot`; returns its slot.

        It has at least `capacity` rows and at least `length`; `slot` is left as it is. Raises what `open` raises.
        """
        ...

    def close(self, slot: int) -> None:
        """Free the slot."""
        ...

    def reserve(self, slot: int, capacity: int) -> None:
        """Make the slot at least `capacity` rows long, keeping what it holds."""
        ...

    def length(self, slot: int) -> int:
        """Committed positions."""
        ...

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the scratch rows `path` (ascending node numbers), in that order; drop the rest."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Forget committed positions from `length` on."""
        ...

    def rows(
        self, slot: int
    ) -> tuple[Float[Tensor, "layers kv_heads len dim"], Float[Tensor, "layers kv_heads len dim"]]:
        """Copies of the committed keys and values, float32: for tests and integrity checks."""
        ...

    @property
    def num_open(self) -> int:
        """Slots in use."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory that the slots take."""
        ...

    def region_bytes(self, capacity: int) -> int:
        """Memory that a region of `capacity` rows takes; 0 where that is not known before the first pass."""
        ...


@runtime_checkable
class SavableCache(KVCache, Protocol):
    """A cache whose rows can be kept as bytes and put back bit for bit, `ROW_GROUP` of them at a time."""

    @property
    def layout(self) -> str:
        """Names what the bits of rows depend on beside the model and its weights, and how bytes are laid out."""
        ...

    def save_rows(self, slot: int, first: int, count: int) -> UInt8[np.ndarray, " bytes"]:
        """A copy of the committed rows [first, first + count); `region_bytes(count)` bytes."""
        ...

    def load_rows(self, slot: int, rows: UInt8[np.ndarray, " bytes"]) -> None:
        """Commit saved rows behind those that are there; there must be room. The scratch is forgotten."""
        ...


class Decoder(Protocol):
    """A stack of transformer layers."""

    has_own_threads: bool  # passes run on threads beside torch's, which then must not wait for work on the same cores

    @property
    def spec(self) -> ModelSpec:
        """What it is."""
        ...

    @property
    def num_weight_bytes(self) -> int:
        """Memory that the weights take, as this runtime holds them."""
        ...

    def new_cache(self) -> KVCache:
        """An empty cache of this decoder's shape."""
        ...

    def forward(
        self, batch: PackedBatch, cache: KVCache, need: Need, inputs: Float[Tensor, "nodes hidden"] | None = None
    ) -> PassOutput:
        """Run all nodes of all requests through the layers; leaves their keys and values in the cache's scratch.

        Each node attends to its request's committed positions, its ancestors and itself. `inputs` replaces the embedding
        of `batch.token_ids`, or stands beside it (`ModelSpec.joins_embedding`). Nothing is committed: that is the caller's next call.
        """
        ...

    def first_layers(self, num_layers: int) -> "Decoder":
        """The first `num_layers` layers with the same embedding, final norm and head, sharing the weights.

        Its passes run on the caches of this decoder: they read the committed rows of those layers and write those layers'
        scratch; what they leave in the other layers' scratch means nothing.
        """
        ...


@runtime_checkable
class ChainDecoder(Protocol):
    """A decoder that drafts whole chains in one call, where a call beside each pass would cost as much as the pass."""

    def draft_chains(
        self, chains: Chains, cache: KVCache, inputs: Float[Tensor, "requests hidden"] | None = None
    ) -> list[list[ChainStep]]:
        """The steps of each request.

        Every token that is read is committed; the last one drawn is not read. `inputs` are those of the first pass,
        where something is carried.
        """
        ...


class Projection(Protocol):
    """A linear map."""

    def __call__(self, inputs: Float[Tensor, "n in"]) -> Float[Tensor, "n out"]:
        """Apply it."""
        ...


class Runtime(Protocol):
    """Makes the blocks from weights."""

    @property
    def name(self) -> str:
        """Torch or native."""
        ...

    @property
    def dtype(self) -> str:
        """How weights are held: float32, bfloat16, int8 or int4."""
        ...

    def decoder(self, spec: ModelSpec, weights: WeightSource) -> Decoder:
        """Build a decoder."""
        ...

    def projection(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None) -> Projection:
        """Build a linear map."""
        ...
