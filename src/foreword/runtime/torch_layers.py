"""The weights of a stack of transformer layers, fused and cast once, and what one layer computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.config import ModelSpec, qk_norm_shape
from foreword.errors import CheckpointError
from foreword.runtime.base import WeightSource
from foreword.runtime.torch_attention import Scoring, Span, attend
from foreword.runtime.torch_linear import TorchLinear
from foreword.runtime.torch_norm import HeadNorm, LayerNorm, Norm, RMSNorm
from foreword.runtime.torch_rope import RopeRows, apply_rope


@dataclass(frozen=True, eq=False)
class TorchLayer:
    """Attention and a gated feed-forward block with residuals; a norm that is None is left out."""

    spec: ModelSpec
    scoring: Scoring
    attn_norm: Norm | None
    hidden_norm: Norm | None  # where the embedding is joined: of the stream, `attn_norm` then of the embedding
    qkv: TorchLinear  # query, key and value heads one after the other
    qk_norm: tuple[HeadNorm, HeadNorm] | None  # of query heads, of key heads
    o: TorchLinear
    attn_out_norm: Norm | None  # of what attention adds to the stream
    mlp_norm: Norm | None
    gate_up: TorchLinear
    down: TorchLinear
    mlp_out_norm: Norm | None  # of what the feed-forward block adds

    def __call__(
        self,
        x: Float[Tensor, "nodes hidden"],
        rope: RopeRows | None,
        spans: Sequence[Span],
        layer: int,
        embedded: Float[Tensor, "nodes hidden"] | None = None,
    ) -> Float[Tensor, "nodes hidden"]:
        """The residual stream after this layer, the `layer`-th of the cache. `embedded`: what is joined, if it is."""
        read = x if self.attn_norm is None else self.attn_norm(x if embedded is None else embedded)
        if self.hidden_norm is not None:
            normed = self.hidden_norm(x)
            read = torch.cat((read, normed), dim=-1)
            x = normed if self.spec.norms_residual else x
        attended = self._attend(read, rope, spans, layer)
        gated = self._gate(read) if self.spec.norms == "parallel" else None
        x = self._add(x, self.o, attended, self.attn_out_norm)
        if gated is None:
            gated = self._gate(x if self.mlp_norm is None else self.mlp_norm(x))
        return self._add(x, self.down, gated, self.mlp_out_norm)

    def _attend(self, read: Tensor, rope: RopeRows | None, spans: Sequence[Span], layer: int) -> Tensor:
        """What `o` reads."""
        num_queries = self.spec.num_heads
        heads = self.qkv(read).view(read.shape[0], -1, self.spec.head_dim)
        if self.qk_norm is not None:
            query_norm, key_norm = self.qk_norm
            query_norm(heads[:, :num_queries])
            key_norm(heads[:, num_queries : num_queries + self.spec.num_kv_heads])
        if rope is not None:
            apply_rope(heads[:, : num_queries + self.spec.num_kv_heads], rope)
            if rope.query_scale is not None:
                heads[:, :num_queries].mul_(rope.query_scale)
        return attend(heads, spans, layer, self.scoring)

    def _gate(self, read: Tensor) -> Tensor:
        """What `down` reads."""
        gate, up = self.gate_up(read).chunk(2, dim=-1)
        return (F.silu(gate) if self.spec.activation == "silu" else F.gelu(gate, approximate="tanh")).mul_(up)

    def _add(self, x: Tensor, linear: TorchLinear, inputs: Tensor, norm: Norm | None) -> Tensor:
        """The stream with what a branch adds."""
        scale = self.spec.residual_scale
        if norm is None and scale == 1.0:
            return linear.add_to(x, inputs)
        branch = linear(inputs)
        return torch.add(x, branch if norm is None else norm(branch), alpha=scale)

    @property
    def num_bytes(self) -> int:
        """Memory that the parameters take."""
        norms = (self.attn_norm, self.hidden_norm, self.attn_out_norm, self.mlp_norm, self.mlp_out_norm)
        parts = (*norms, *(self.qk_norm or ()), self.qkv, self.o, self.gate_up, self.down)
        return sum(part.num_bytes for part in parts if part is not None)


class LayerLoader:
    """Reads tensors from a source, checks their shapes, fuses, and puts them on a device in a dtype."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, device: torch.device, dtype: torch.dtype) -> None:
        self._spec = spec
        self._weights = weights
        self._device = device
        self._dtype = dtype

    def layer(self, index: int) -> TorchLayer:
        """The `index`-th layer, its q, k, v and its gate, up each as one matrix."""
        spec, prefix = self._spec, f"layers.{index}."
        hidden, q_width, kv_width = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        qkv = {f"{prefix}q": q_width, f"{prefix}k": kv_width, f"{prefix}v": kv_width}
        gate_up = {f"{prefix}gate": spec.intermediate_size, f"{prefix}up": spec.intermediate_size}

        def norm(name: str, is_there: bool) -> Norm | None:
            return self.norm(f"{prefix}{name}", hidden) if is_there else None

        return TorchLayer(
            spec=spec,
            scoring=Scoring(spec.layer(index).window, spec.score_scale, spec.score_cap),
            attn_norm=norm("attn_norm", spec.has_pre_norms and (spec.has_first_norm or index > 0)),
            hidden_norm=norm("hidden_norm", spec.joins_embedding and index == 0),
            qkv=self._fused(qkv, spec.qkv_input_size(index), has_bias=spec.qkv_bias),
            qk_norm=self._qk_norm(prefix) if spec.qk_norm else None,
            o=self._fused({f"{prefix}o": hidden}, q_width, has_bias=spec.o_bias),
            attn_out_norm=norm("attn_out_norm", spec.has_out_norms),
            mlp_norm=norm("mlp_norm", spec.has_mlp_norm),
            gate_up=self._fused(gate_up, hidden, has_bias=spec.mlp_bias),
            down=self._fused({f"{prefix}down": hidden}, spec.intermediate_size, has_bias=spec.mlp_bias),
            mlp_out_norm=norm("mlp_out_norm", spec.has_out_norms),
        )

    def _qk_norm(self, prefix: str) -> tuple[HeadNorm, HeadNorm]:
        spec = self._spec
        return (
            self._head_norm(f"{prefix}q_norm", spec.num_heads),
            self._head_norm(f"{prefix}k_norm", spec.num_kv_heads),
        )

    def _head_norm(self, name: str, num_heads: int) -> HeadNorm:
        spec = self._spec
        weight = self.tensor(f"{name}.weight", qk_norm_shape(spec, num_heads))
        if spec.qk_norm_over != "each_head":
            return HeadNorm(self._norm_of(weight, None), is_joined=spec.qk_norm_over == "all_heads")
        return HeadNorm(self._norm_of(torch.ones_like(weight[0]), None), weights=weight)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of the expected shape; no copy if the source's dtype and device are the wanted ones."""
        return self._checked(name, shape).to(self._device, self._dtype)

    def norm(self, name: str, size: int) -> Norm:
        """The norm `name`."""
        has_bias = self._spec.norm_bias and self._spec.norm_kind == "layer"
        bias = self.tensor(f"{name}.bias", (size,)) if has_bias else None
        return self._norm_of(self.tensor(f"{name}.weight", (size,)), bias)

    def _norm_of(self, weight: Tensor, bias: Tensor | None) -> Norm:
        eps = self._spec.norm_eps
        return RMSNorm(weight, eps) if self._spec.norm_kind == "rms" else LayerNorm(weight, bias, eps)

    def has_tensor(self, name: str) -> bool:
        """Whether the source has it."""
        return self._weights.has_tensor(name)

    def linear(self, name: str, out_size: int, in_size: int) -> TorchLinear:
        """The map `name`, without a bias."""
        return self._fused({name: out_size}, in_size)

    def _fused(self, out_sizes: dict[str, int], in_size: int, has_bias: bool = False) -> TorchLinear:
        """Maps of the same input as one."""
        weight = self._stacked({f"{name}.weight": (size, in_size) for name, size in out_sizes.items()})
        bias = self._stacked({f"{name}.bias": (size,) for name, size in out_sizes.items()}) if has_bias else None
        return TorchLinear(weight, bias, self._device, self._dtype)

    def _stacked(self, shapes: dict[str, tuple[int, ...]]) -> Tensor:
        """Tensors one below the other, each cast while it is copied; a single one is not copied."""
        if len(shapes) == 1:
            return self.tensor(*next(iter(shapes.items())))
        ends = [0]
        for shape in shapes.values():
            ends.append(ends[-1] + shape[0])
        stacked = torch.empty(ends[-1], *next(iter(shapes.values()))[1:], dtype=self._dtype, device=self._device)
        for (name, shape), (first, end) in zip(shapes.items(), pairwise(ends), strict=True):
            stacked[first:end].copy_(self._checked(name, shape))
        return stacked

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if not self._weights.has_tensor(name):
            raise CheckpointError(f"the checkpoint has no tensor {name!r}, which a {self._spec.family} model needs")
        tensor = self._weights.tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"tensor {name!r} has shape {tuple(tensor.shape)}; the model's sizes ask for {shape}")
        return tensor
