"""A transformer layer as it is trained, for drafters that are made of such layers.

Parameter names are those of Hugging Face's files. Answers are right-aligned (`batches`); a rotary embedding knows
distances only, so a column's number is its position.
"""

import math

import torch
from torch import Tensor, nn

from foreword.config import ModelSpec
from foreword.runtime.torch_rope import inverse_frequencies
from foreword.train.methods.eagle3_net import Mlp, RMSNorm, Seen, attend, turn


class SelfAttention(nn.Module):
    """Projections, with biases and norms of queries and keys where the family has them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden, q_width, kv_width = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q_proj = nn.Linear(hidden, q_width, bias=spec.qkv_bias)
        self.k_proj = nn.Linear(hidden, kv_width, bias=spec.qkv_bias)
        self.v_proj = nn.Linear(hidden, kv_width, bias=spec.qkv_bias)
        self.o_proj = nn.Linear(q_width, hidden, bias=False)
        if spec.qk_norm:
            self.q_norm = RMSNorm(spec.head_dim, spec.norm_eps)
            self.k_norm = RMSNorm(spec.head_dim, spec.norm_eps)


class Layer(nn.Module):
    """Attention and SwiGLU before residuals that stay float32. Without `spec.has_first_norm` attention reads x itself."""

    frequencies: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps) if spec.has_first_norm else None
        self.self_attn = SelfAttention(spec)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.mlp = Mlp(spec)
        frequencies = inverse_frequencies(spec.rope, spec.head_dim, torch.device("cpu"))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def begin(self, x: Tensor, num_last: int, starts: Tensor) -> tuple[Tensor, Seen]:
        """The output for the last `num_last` columns of x (B, T, H), and what all columns left.

        Columns before `starts` (B) are padding.
        """
        first = x.shape[1] - num_last
        inputs = self._inputs(x)
        seen = Seen(*self._keys_values(inputs, 0), [], [])
        return self._finish(x[:, first:], self._queries(inputs[:, first:], first), seen, starts), seen

    def advance(self, x: Tensor, seen: Seen, step: int, starts: Tensor) -> Tensor:
        """The output where each of the last columns goes on from guesses of its own: x (B, A, H) stands `step` further."""
        first = seen.keys.shape[2] - x.shape[1]
        inputs = self._inputs(x)
        keys, values = self._keys_values(inputs, first + step)
        seen.own_keys.append(keys)
        seen.own_values.append(values)
        return self._finish(x, self._queries(inputs, first + step), seen, starts)

    def _inputs(self, x: Tensor) -> Tensor:
        return x if self.input_layernorm is None else self.input_layernorm(x)

    def _queries(self, inputs: Tensor, first_position: int) -> Tensor:
        """Turned, and divided by the root of their size."""
        queries = self._heads(self.self_attn.q_proj(inputs))
        queries = self.self_attn.q_norm(queries) if self.spec.qk_norm else queries
        return turn(queries, first_position, self.frequencies) / math.sqrt(self.spec.head_dim)

    def _keys_values(self, inputs: Tensor, first_position: int) -> tuple[Tensor, Tensor]:
        keys = self._heads(self.self_attn.k_proj(inputs))
        keys = self.self_attn.k_norm(keys) if self.spec.qk_norm else keys
        return turn(keys, first_position, self.frequencies), self._heads(self.self_attn.v_proj(inputs))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, heads, columns, dim)."""
        return x.view(*x.shape[:2], -1, self.spec.head_dim).transpose(1, 2)

    def _finish(self, x: Tensor, queries: Tensor, seen: Seen, starts: Tensor) -> Tensor:
        x = x + self.self_attn.o_proj(attend(queries, seen, starts))
        return x + self.mlp(self.post_attention_layernorm(x))
