"""A decoder in torch: the reference, on any device and in any floating dtype."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.config import ModelSpec
from foreword.errors import ConfigError
from foreword.runtime.base import KVCache, Need, PassOutput, WeightSource
from foreword.runtime.torch_attention import make_spans
from foreword.runtime.torch_kv_cache import TorchKVCache
from foreword.runtime.torch_layers import LayerLoader
from foreword.runtime.torch_linear import TorchLinear
from foreword.runtime.torch_output import draw_tokens, top_tokens
from foreword.runtime.torch_rope import RopeTable
from foreword.tree.pack import PackedBatch


@final
class TorchDecoder:
    """`Decoder` of runtime/base.py.

    Embedding, final norm and head are used where the source has them. The linear maps run on all nodes of all requests
    at once, attention request by request, the head only on the rows that something is wanted of. Taps and hidden rows
    come in the runtime's dtype, logits in float32; clone what is kept beyond the next pass or used with autograd.
    """

    has_own_threads = False

    def __init__(self, spec: ModelSpec, weights: WeightSource, device: torch.device, dtype: torch.dtype) -> None:
        self._spec = spec
        self._device = device
        self._dtype = dtype
        load = LayerLoader(spec, weights, device, dtype)
        table = (spec.vocab_size, spec.hidden_size)
        self._embedding = load.tensor("embed.weight", table) if load.has_tensor("embed.weight") else None
        self._norm = (
            load.norm("norm", spec.hidden_size) if spec.has_final_norm and load.has_tensor("norm.weight") else None
        )
        self._head = self._load_head(load)
        self._layers = [load.layer(index) for index in range(spec.num_layers)]
        self._ropes = {rope: RopeTable(rope, spec.head_dim, device) for rope in spec.ropes}
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=dtype, device=device)

    @property
    def spec(self) -> ModelSpec:
        """What it is."""
        return self._spec

    @property
    def num_weight_bytes(self) -> int:
        """Memory that the weights take. A tied head counts as well: on a CPU it is a reordered copy."""
        blocks = (*self._layers, *(part for part in (self._norm, self._head) if part is not None))
        return sum(block.num_bytes for block in blocks) + (0 if self._embedding is None else self._embedding.nbytes)

    def first_layers(self, num_layers: int) -> "TorchDecoder":
        """The first `num_layers` layers with the same embedding, final norm and head, sharing the weights."""
        if not 1 <= num_layers <= len(self._layers):
            raise ConfigError(f"{num_layers} first layers are wanted; allowed: 1 to {len(self._layers)}")
        part = copy.copy(self)
        part._spec = replace(self._spec, num_layers=num_layers)
        part._layers = self._layers[:num_layers]
        return part

    @property
    def device(self) -> torch.device:
        """Where weights, keys and values are."""
        return self._device

    def new_cache(self) -> TorchKVCache:
        """An empty cache of this decoder's shape."""
        return TorchKVCache(self._spec, self._device, self._dtype)

    @torch.inference_mode()
    def forward(
        self, batch: PackedBatch, cache: KVCache, need: Need, inputs: Float[Tensor, "nodes hidden"] | None = None
    ) -> PassOutput:
        """Run all nodes of all requests through the layers; leaves their keys and values in the cache's scratch."""
        assert isinstance(cache, TorchKVCache), f"the cache is a {type(cache).__name__}, not this decoder's"
        embedded = self._embed(batch) if inputs is None or self._spec.joins_embedding else None
        x = embedded if inputs is None else self._checked_inputs(inputs, batch.num_nodes)
        if x is None or (self._spec.joins_embedding and inputs is None):
            raise ConfigError("the first layer joins embedding and input; give the pass its `inputs`")
        positions = torch.from_numpy(batch.positions).to(self._device)
        ropes = {rope: table.rows(positions, self._dtype) for rope, table in self._ropes.items()}
        spans = make_spans(batch, cache, self._spec, x)
        taps = {}
        for index, layer in enumerate(self._layers):
            if index in need.taps:
                taps[index] = x
            rope = self._spec.layer(index).rope
            rows = None if rope is None else ropes[rope]
            x = layer(x, rows, spans, index, embedded if self._spec.joins_embedding and index == 0 else None)
        taps[len(self._layers)] = x
        return self._output(x, need, taps)

    def _output(self, x: Float[Tensor, "nodes hidden"], need: Need, taps: dict[int, Tensor]) -> PassOutput:
        """Norm, head and draws, only for the rows that something is wanted of."""
        output = PassOutput()
        if need.taps:
            output.taps = torch.stack([taps[index] for index in need.taps], dim=1)
        if need.hidden:
            output.hidden = x = self._final_norm(x)
        top_nodes = need.top_nodes if need.top_k else ()
        rows = sorted({*need.logits, *top_nodes, *(wanted.node for wanted in need.draws)})
        if not rows:
            return output
        logits = self._logits(_pick(x, rows), is_normed=need.hidden)
        row_of = {node: row for row, node in enumerate(rows)}
        output.choices = draw_tokens(logits, need.draws, row_of, need.names)
        if need.logits:
            output.logits = _pick(logits, [row_of[node] for node in need.logits])
        if top_nodes:
            output.top_ids, output.top_logprobs = top_tokens(_pick(logits, [row_of[n] for n in top_nodes]), need.top_k)
        return output

    def _logits(self, x: Float[Tensor, "rows hidden"], is_normed: bool) -> Float[Tensor, "rows vocab"]:
        if self._head is None:
            raise ConfigError("tokens or logits are wanted, but this decoder has no head; use its hidden rows")
        logits = self._head(x if is_normed else self._final_norm(x)).float()
        scale, cap = self._spec.logit_scale, self._spec.logit_cap
        logits = logits if scale == 1.0 else logits.mul_(scale)
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _final_norm(self, x: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        return x if self._norm is None else self._norm(x)

    def _embed(self, batch: PackedBatch) -> Float[Tensor, "nodes hidden"]:
        if self._embedding is None:
            raise ConfigError("this decoder has no embedding of its own; give it `inputs`")
        lowest, highest = int(batch.token_ids.min()), int(batch.token_ids.max())
        if lowest < 0 or highest >= self._spec.vocab_size:
            raise ConfigError(
                f"token ids from {lowest} to {highest}; the model knows 0 to {self._spec.vocab_size - 1}; "
                f"was the text encoded with another model's tokenizer?"
            )
        rows = F.embedding(torch.from_numpy(batch.token_ids).to(self._device), self._embedding)
        return rows if self._spec.embedding_scale == 1.0 else rows * self._embedding_scale

    def _checked_inputs(self, inputs: Float[Tensor, "nodes hidden"], num_nodes: int) -> Float[Tensor, "nodes hidden"]:
        wanted = (num_nodes, self._spec.hidden_size)
        if tuple(inputs.shape) != wanted:
            raise ConfigError(f"inputs have shape {tuple(inputs.shape)}; this pass wants {wanted}, one row per node")
        return inputs.to(self._device, self._dtype)

    def _load_head(self, load: LayerLoader) -> TorchLinear | None:
        """The head: the embedding itself when tied; None where the source has neither."""
        if not self._spec.tied_head and load.has_tensor("head.weight"):
            return load.linear("head", self._spec.num_logits, self._spec.hidden_size)
        if self._spec.tied_head and self._embedding is not None:
            return TorchLinear(self._embedding, None, self._device, self._dtype)
        return None


def _pick(rows: Float[Tensor, "n width"], wanted: Sequence[int]) -> Float[Tensor, "m width"]:
    """Rows by index; the tensor itself when that is all of them in order."""
    if list(wanted) == list(range(len(rows))):
        return rows
    return rows[torch.tensor(wanted, device=rows.device)]
