"""The CPU runtime: int8 or int4 weights on the C++ kernels of `foreword-kernels`.

A whole pass is one call. It is bitwise batch-invariant: a token's logits have the same bits whatever shares the pass,
however a prompt is cut in chunks, and on any number of threads.
"""

import hashlib
import json
import logging
import math
import platform
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from foreword.cache_folder import cache_folder
from foreword.config import ModelSpec
from foreword.errors import ConfigError, KernelError, UnknownNameError
from foreword.runtime.base import Chains, ChainStep, Decoder, Draw, KVCache, Need, PassOutput, WeightSource
from foreword.runtime.cpu_cores import allowed_cpus, find_cores
from foreword.runtime.native_kv_cache import KV_BYTES, NativeKVCache
from foreword.runtime.native_load import PackedLoader, pack_projection
from foreword.runtime.native_threads import default_threads
from foreword.runtime.native_weights import check_dtype
from foreword.runtime.thread_choice import fewest_that_suffice, keep_choice, kept_choice, numbers_to_try, race_on
from foreword.tree.pack import PackedBatch

logger = logging.getLogger(__name__)

_NO_NODES = np.zeros(0, dtype=np.int32)
_FEW_CORES = 2  # so many always pay


def load_kernels() -> ModuleType:
    """The compiled package; `KernelError` with the reason where there is none."""
    try:
        import foreword_kernels  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise KernelError(
            f"the native runtime needs the package foreword-kernels, which does not load here: {error}; "
            "build it with `pip install ./kernels` (it needs a C++ compiler), or use the torch runtime"
        ) from error
    return foreword_kernels


@final
class NativeRuntime:
    """Decoders and projections that share one pool of threads.

    `isa` forces an instruction set (tests do); "auto" takes the fastest this processor has. `cache_dir` keeps packed
    weights (the user's cache folder by default). `kv_dtype` is how keys and values are kept: "float32", or as "bfloat16",
    rounded once when written: half the memory and faster at long contexts, other last bits of the logits, invariant all the same.
    """

    name = "native"

    def __init__(
        self,
        dtype: str = "int8",
        threads: int | None = None,
        cache_dir: Path | str | None = None,
        isa: str = "auto",
        kv_dtype: str = "bfloat16",
        share_weights: bool = False,
    ) -> None:
        check_dtype(dtype)
        if kv_dtype not in KV_BYTES:
            raise UnknownNameError("kv_dtype of the native runtime", kv_dtype, KV_BYTES)
        if threads is not None and threads < 1:
            raise ConfigError(f"threads is {threads}; allowed: 1 or above, or None for the physical cores")
        self._kernels = load_kernels()
        names = self._kernels.available_isas()
        if isa != "auto" and isa not in names:
            raise KernelError(f"the instruction set {isa!r} does not run here; allowed: auto, {', '.join(names)}")
        self.isa = names[0] if isa == "auto" else isa
        self.dtype, self.kv_dtype, self.share_weights = dtype, kv_dtype, share_weights
        self.threads = threads or default_threads()
        self._cache_dir = Path(cache_dir) if cache_dir is not None else cache_folder()
        self._pool = self._kernels.ThreadPool(self.threads)
        self._may_measure = threads is None and self.threads > _FEW_CORES

    def with_dtype(self, dtype: str) -> "NativeRuntime":
        """One that holds weights otherwise and runs on the same threads."""
        check_dtype(dtype)
        other = copy(self)
        other.dtype, other._may_measure = dtype, False
        return other

    def decoder(self, spec: ModelSpec, weights: WeightSource) -> "NativeDecoder":
        """Build a decoder. The first time its weights are quantised and kept in the cache.

        Raises:
            CapacityError: it does not fit in memory.
            CheckpointError: a tensor is missing, has another shape, or holds NaN or infinity.
        """
        load = PackedLoader(self._kernels, self.dtype, self._cache_dir, self.share_weights)
        built, num_bytes = load.decoder(spec, weights, self._pool, self.isa)
        decoder = NativeDecoder(self._kernels, spec, built, num_bytes, self.kv_dtype)
        if self._may_measure:
            self._may_measure = False  # others follow the first, which is the target
            self.find_threads(decoder, weights.fingerprint)
        return decoder

    def find_threads(self, decoder: Decoder, fingerprint: str | None, *, anew: bool = False) -> int:
        """Use no more threads than measured passes of `decoder` say that help; how many that is.

        What was measured for these weights on these cores before is believed, unless `anew`. For a runtime on which
        nothing runs yet: passes in other threads would meet another number midway.
        """
        cores = find_cores(allowed_cpus())
        numbers = numbers_to_try(cores, default_threads())
        facts = [fingerprint, decoder.spec.num_layers, self.dtype, self.isa, numbers[0], [core.kind for core in cores]]
        key = hashlib.sha256(json.dumps([*facts, platform.node()]).encode()).hexdigest()[:24]
        path = self._cache_dir / "threads" / f"{key}.json"
        found = None if anew or fingerprint is None else kept_choice(path, numbers)
        if found is None:
            found = fewest_that_suffice(numbers, race_on(decoder, self._pool.resize))
            if found is not None and fingerprint is not None:
                keep_choice(path, found)
        self.threads = found or numbers[0]
        self._pool.resize(self.threads)
        return self.threads

    def projection(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None
    ) -> "NativeProjection":
        """Build a linear map (always int8)."""
        return NativeProjection(pack_projection(self._kernels, weight, bias, self._pool, self.isa), weight.shape[0])


@final
class NativeDecoder:
    """A stack of layers; `forward` is one call of the kernels, which release the interpreter's lock."""

    has_own_threads = True

    def __init__(
        self, kernels: ModuleType, spec: ModelSpec, handle: Any, num_bytes: int, kv_dtype: str = "float32"
    ) -> None:
        self._kernels, self.spec, self._handle, self.num_weight_bytes = kernels, spec, handle, num_bytes
        self.kv_dtype = kv_dtype

    def new_cache(self) -> NativeKVCache:
        """An empty cache of this decoder's shape."""
        return NativeKVCache(self._kernels, self.spec, self.kv_dtype)

    def first_layers(self, num_layers: int) -> "NativeDecoder":
        """The first `num_layers` layers with the same embedding, final norm and head, sharing the weights."""
        try:
            handle = self._handle.first_layers(num_layers)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        per_layer = self.num_weight_bytes // max(self.spec.num_layers, 1)  # the head's share included: for people only
        spec = replace(self.spec, num_layers=num_layers)
        return NativeDecoder(self._kernels, spec, handle, per_layer * num_layers, self.kv_dtype)

    def forward(
        self, batch: PackedBatch, cache: KVCache, need: Need, inputs: Float[Tensor, "nodes hidden"] | None = None
    ) -> PassOutput:
        """Run all nodes of all requests through the layers; leaves their keys and values in the cache's scratch."""
        cache = _own(cache)
        out = _allocate(need, batch.num_nodes, self.spec)
        choices = np.empty(len(need.draws), dtype=np.int32)
        try:
            self._handle.forward(
                cache.handle,
                batch.token_ids,
                batch.parents,
                batch.positions,
                _ints(batch.starts),
                _ints(batch.kv_lens),
                _ints(batch.slots),
                None if inputs is None else inputs.detach().float().contiguous().numpy(),
                *_draw_columns(need.draws, self.spec.num_logits),
                _NO_NODES if need.names is None else need.names,
                choices,
                _ints(need.logits),
                _array(out.logits),
                _ints(need.top_nodes if need.top_k else ()),
                need.top_k,
                _array(out.top_ids),
                _array(out.top_logprobs),
                _ints(need.taps),
                _array(out.taps),
                _array(out.hidden),
            )
        except ValueError as error:
            raise KernelError(f"the pass was refused: {error}") from error
        if out.top_ids is not None:
            out.top_ids = out.top_ids.long()
        out.choices = choices.tolist()
        return out

    def draft_chains(
        self, chains: Chains, cache: KVCache, inputs: Float[Tensor, "requests hidden"] | None = None
    ) -> list[list[ChainStep]]:
        """All passes of some chains in one call. See `ChainDecoder`."""
        cache = _own(cache)
        depths = [len(draws) for draws in chains.draws]
        for slot, depth in zip(chains.slots, depths, strict=False):
            cache.reserve(slot, cache.length(slot) + depth)
        most = max(depths)
        padded = [draw for draws in chains.draws for draw in (*draws, *[draws[-1]] * (most - len(draws)))]
        drawn = np.empty((len(depths), most), dtype=np.int32)
        top_ids = np.empty((len(depths), most, chains.top_k), dtype=np.int32)
        top_logprobs = np.empty((len(depths), most, chains.top_k), dtype=np.float32)
        try:
            self._handle.draft_chains(
                cache.handle,
                _ints(chains.slots),
                _ints(chains.token_ids),
                _ints(depths),
                None if inputs is None else inputs.detach().float().contiguous().numpy(),
                chains.carries,
                *_draw_columns(padded, self.spec.num_logits),
                _NO_NODES if chains.names is None else chains.names,
                chains.threshold,
                drawn,
                top_ids,
                top_logprobs,
            )
        except ValueError as error:
            raise KernelError(f"the chains were refused: {error}") from error
        return [
            [
                ChainStep(token, ids, [math.exp(logprob) for logprob in logprobs])
                for token, ids, logprobs in zip(*columns, strict=True)
                if token >= 0
            ]
            for columns in zip(drawn.tolist(), top_ids.tolist(), top_logprobs.tolist(), strict=True)
        ]


@final
class NativeProjection:
    """A linear map."""

    def __init__(self, handle: Any, num_outputs: int) -> None:
        self._handle, self._num_outputs = handle, num_outputs

    def __call__(self, inputs: Float[Tensor, "n in"]) -> Float[Tensor, "n out"]:
        """Apply it."""
        outputs = torch.empty(inputs.shape[0], self._num_outputs)
        self._handle.apply(inputs.detach().float().contiguous().numpy(), outputs.numpy())
        return outputs


def _own(cache: KVCache) -> NativeKVCache:
    """A cache of this runtime; `ConfigError` for any other."""
    if not isinstance(cache, NativeKVCache):
        raise ConfigError(f"the native runtime cannot use a {type(cache).__name__}; take the decoder's new_cache()")
    return cache


def _allocate(need: Need, num_nodes: int, spec: ModelSpec) -> PassOutput:
    """Memory for what the pass must hand back."""
    out = PassOutput()
    if need.logits:
        out.logits = torch.empty(len(need.logits), spec.num_logits)
    if need.top_k and need.top_nodes:
        out.top_ids = torch.empty(len(need.top_nodes), need.top_k, dtype=torch.int32)
        out.top_logprobs = torch.empty(len(need.top_nodes), need.top_k)
    if need.taps:
        out.taps = torch.empty(num_nodes, len(need.taps), spec.hidden_size)
    if need.hidden:
        out.hidden = torch.empty(num_nodes, spec.hidden_size)
    return out


def _draw_columns(draws: Sequence[Draw], vocab_size: int) -> tuple[np.ndarray, ...]:
    """Nodes, temperatures, top_k (no more than there are tokens), top_p, min_p and row keys of the draws."""
    warps = [draw.warp for draw in draws]
    return (
        np.array([draw.node for draw in draws], dtype=np.int32),
        np.array([warp.temperature for warp in warps], dtype=np.float64),
        np.array([min(warp.top_k, vocab_size) for warp in warps], dtype=np.int32),
        np.array([warp.top_p for warp in warps], dtype=np.float64),
        np.array([warp.min_p for warp in warps], dtype=np.float64),
        np.array([draw.key & 0xFFFFFFFFFFFFFFFF for draw in draws], dtype=np.uint64),
    )


def _ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32) if len(values) else _NO_NODES


def _array(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()
