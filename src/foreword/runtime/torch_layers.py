"""The weights of a stack of transformer layers, fused and cast once, and what one layer computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.config import ModelSpec
from foreword.errors import CheckpointError
from foreword.runtime.base import WeightSource
from foreword.runtime.torch_attention import Span, attend
from foreword.runtime.torch_linear import TorchLinear
from foreword.runtime.torch_rope import RopeRows, apply_rope


class RMSNorm:
    """x / sqrt(mean x^2 + eps) * weight over the last dimension, sums in float32 or wider [zhang19].

    [x, -x] has mean 0 and the mean square of x, so its layer norm is x's RMS norm: one fused operator for seven.
    """

    def __init__(self, weight: Float[Tensor, " dim"], eps: float) -> None:
        self._weight = torch.cat((weight, weight))
        self._eps = eps

    def __call__(self, x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """Normalise every row."""
        doubled = torch.cat((x, -x), dim=-1)
        return F.layer_norm(doubled, self._weight.shape, self._weight, None, self._eps)[..., : x.shape[-1]]

    @property
    def num_bytes(self) -> int:
        """Memory that the weight takes."""
        return self._weight.nbytes


@dataclass(frozen=True, eq=False)
class TorchLayer:
    """Pre-norm attention and SwiGLU with residuals."""

    spec: ModelSpec
    attn_norm: RMSNorm | None
    hidden_norm: RMSNorm | None  # where the embedding is joined: of the stream, `attn_norm` then of the embedding
    qkv: TorchLinear  # query, key and value heads one after the other
    qk_norm: tuple[RMSNorm, RMSNorm] | None  # over each query head, over each key head
    o: TorchLinear
    mlp_norm: RMSNorm
    gate_up: TorchLinear
    down: TorchLinear

    def __call__(
        self,
        x: Float[Tensor, "nodes hidden"],
        rope: RopeRows,
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
        heads = self.qkv(read).view(x.shape[0], -1, self.spec.head_dim)
        turned = heads[:, : self.spec.num_heads + self.spec.num_kv_heads]
        if self.qk_norm is not None:
            self._normalise(turned, *self.qk_norm)
        apply_rope(turned, rope)
        x = self.o.add_to(x, attend(heads, spans, layer))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return self.down.add_to(x, F.silu(gate).mul_(up))

    def _normalise(self, heads: Float[Tensor, "nodes heads dim"], query_norm: RMSNorm, key_norm: RMSNorm) -> None:
        queries, keys = heads.tensor_split((self.spec.num_heads,), dim=1)
        queries.copy_(query_norm(queries))
        keys.copy_(key_norm(keys))

    @property
    def num_bytes(self) -> int:
        """Memory that the parameters take."""
        norms = (self.attn_norm, self.hidden_norm, self.mlp_norm, *(self.qk_norm or ()))
        parts = (*norms, self.qkv, self.o, self.gate_up, self.down)
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
        return TorchLayer(
            spec=spec,
            attn_norm=self.norm(f"{prefix}attn_norm", hidden) if spec.has_first_norm or index > 0 else None,
            hidden_norm=self.norm(f"{prefix}hidden_norm", hidden) if spec.joins_embedding and index == 0 else None,
            qkv=self._fused(qkv, spec.qkv_input_size(index), has_bias=spec.qkv_bias),
            qk_norm=(
                (self.norm(f"{prefix}q_norm", spec.head_dim), self.norm(f"{prefix}k_norm", spec.head_dim))
                if spec.qk_norm
                else None
            ),
            o=self._fused({f"{prefix}o": hidden}, q_width),
            mlp_norm=self.norm(f"{prefix}mlp_norm", hidden),
            gate_up=self._fused(gate_up, hidden),
            down=self._fused({f"{prefix}down": hidden}, spec.intermediate_size),
        )

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of the expected shape; no copy if the source's dtype and device are the wanted ones."""
        return self._checked(name, shape).to(self._device, self._dtype)

    def norm(self, name: str, size: int) -> RMSNorm:
        """The norm `name`."""
        return RMSNorm(self.tensor(f"{name}.weight", (size,)), self._spec.norm_eps)

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
