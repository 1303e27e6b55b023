"""EAGLE-3's network as it is trained [eagle3]: one layer over (fused features, next token), unrolled on its own states.

    pair t       feature g_t of token t beside the embedding of token t+1, at position t; it predicts token t+2
    step 0       g = fc(three residual streams of the target)
    step s       the layer's own output of step s-1 stands for the feature that drafting would not have: pair t then
                 stands at position t+s, holds the embedding of token t+1+s and predicts token t+2+s

What pair t of step s may see is what drafting will have there: the true pairs 0..t of step 0, and its own earlier
guesses, one for each of the steps 1..s. Parameter names are those of the file format.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foreword.config import ModelSpec
from foreword.runtime.torch_rope import inverse_frequencies
from foreword.train.data.batches import Batch


@dataclass(frozen=True)
class Eagle3Spec:
    """Sizes of the network. Heads, rope and sizes are the target's."""

    target: ModelSpec
    taps: tuple[int, ...]
    draft_vocab_size: int

    @staticmethod
    def default_taps(num_layers: int) -> tuple[int, ...]:
        """Inputs of layers 2, L // 2, L - 3; closer together in a target of a few layers."""
        return tuple(sorted({min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, num_layers // 2 + 1)}))


def compute_dtype() -> torch.dtype:
    """The dtype of matrix products: autocast's where it is on."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


class RMSNorm(nn.Module):
    """Sums in float32 [zhang19]. As the layer norm of [x, -x], whose mean is 0: one fused operator for seven."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        doubled = torch.cat((x, -x), dim=-1).float()
        normed = F.layer_norm(doubled, (doubled.shape[-1],), None, None, self.eps)
        return normed[..., : x.shape[-1]] * self.weight


class Attention(nn.Module):
    """Projections; q, k and v read the embedding and the feature side by side."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden, q_width, kv_width = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q_proj = nn.Linear(2 * hidden, q_width, bias=False)
        self.k_proj = nn.Linear(2 * hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(2 * hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, hidden, bias=False)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MidLayer(nn.Module):
    """The one layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.hidden_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.self_attn = Attention(spec)
        self.mlp = Mlp(spec)


@dataclass
class Seen:
    """Keys and values so far: those of step 0 for all columns, those of later steps for the answers' columns."""

    keys: Tensor  # (B, kv_heads, T, dim)
    values: Tensor
    own_keys: list[Tensor]  # of each later step: (B, kv_heads, A, dim)
    own_values: list[Tensor]


class Unrolled(Protocol):
    """A network that goes on from its own states."""

    def begin(self, features: Tensor, embedded: Tensor, num_answers: int, starts: Tensor) -> tuple[Tensor, Seen]:
        """Step 0."""
        ...

    def advance(self, state: Tensor, embedded: Tensor, seen: Seen, step: int, starts: Tensor) -> Tensor:
        """A later step."""
        ...


def unroll(net: Unrolled, features: Tensor, embedded: Tensor, batch: Batch, num_steps: int) -> Iterator[Tensor]:
    """What each step gives for the answers' pairs (B, A - 1, H).

    features: of all tokens but the last (B, T - 1, H), which begins no pair; embedded: of all tokens (B, T, H).
    """
    first, num_pairs = batch.num_columns - batch.answer_columns, batch.answer_columns - 1
    embedded = embedded[:, 1:]  # of the token after
    state, seen = net.begin(features, embedded, num_pairs, batch.starts)
    yield state
    for step in range(1, num_steps):
        ahead = F.pad(embedded[:, first + step :], (0, 0, 0, min(step, num_pairs)))[:, :num_pairs]
        state = net.advance(state, ahead, seen, step, batch.starts)
        yield state


class Eagle3Net(nn.Module):
    """The trained parameters, float32. `feature_scale` divides what fc reads, so that a few huge values do not rule it."""

    feature_scale: Tensor

    def __init__(self, spec: Eagle3Spec) -> None:
        super().__init__()
        self.spec = spec
        target = spec.target
        width = len(spec.taps) * target.hidden_size
        self.fc = nn.Linear(width, target.hidden_size, bias=False)
        self.midlayer = MidLayer(target)
        self.norm = RMSNorm(target.hidden_size, target.norm_eps)
        self.lm_head = nn.Linear(target.hidden_size, spec.draft_vocab_size, bias=False)
        self.register_buffer("feature_scale", torch.ones(width))
        frequencies = inverse_frequencies(target.rope, target.head_dim, torch.device("cpu"))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def initialise(self, head: Tensor, scale: Tensor, generator: torch.Generator) -> None:
        """Random maps of unit gain, the layer's outputs damped; the head begins as the target's.

        Args:
            head: the target's head rows of the draft vocabulary (V_d, H).
            scale: root mean square of each value that fc reads.
            generator: of the random numbers.
        """
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2 and name != "lm_head.weight":
                    gain = 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                    parameter.normal_(0.0, gain / math.sqrt(parameter.shape[1]), generator=generator)
            self.lm_head.weight.copy_(head * (1.0 / head.norm(dim=-1).mean()))
            self.feature_scale.copy_(scale.clamp_min(1e-6))

    def fuse(self, taps: Tensor) -> Tensor:
        """The features g (..., H) of residual streams (..., taps * H)."""
        return F.linear(taps.to(compute_dtype()), self.fc.weight / self.feature_scale)

    def begin(self, features: Tensor, embedded: Tensor, num_answers: int, starts: Tensor) -> tuple[Tensor, Seen]:
        """Step 0: the layer's output for the last `num_answers` columns, and what all columns left.

        features, embedded: (B, T, H), the embedding that of the token after; columns before `starts` (B) are padding.
        """
        inputs = self._inputs(features, embedded)
        keys, values = self._keys_values(inputs, 0)
        seen = Seen(keys, values, [], [])
        first = features.shape[1] - num_answers
        return self._finish(features[:, first:], self._queries(inputs[:, first:], first), seen, starts), seen

    def advance(self, state: Tensor, embedded: Tensor, seen: Seen, step: int, starts: Tensor) -> Tensor:
        """Step `step`: the layer's output on its own last output (B, A, H)."""
        first = seen.keys.shape[2] - state.shape[1]
        inputs = self._inputs(state, embedded)
        keys, values = self._keys_values(inputs, first + step)
        seen.own_keys.append(keys)
        seen.own_values.append(values)
        return self._finish(state, self._queries(inputs, first + step), seen, starts)

    def _inputs(self, state: Tensor, embedded: Tensor) -> Tensor:
        return torch.cat((self.midlayer.input_layernorm(embedded), self.midlayer.hidden_norm(state)), dim=-1)

    def _queries(self, inputs: Tensor, first_position: int) -> Tensor:
        """Turned, and divided by the root of their size here, where they are few."""
        queries = self._turn(self._heads(self.midlayer.self_attn.q_proj(inputs)), first_position)
        return queries / math.sqrt(self.spec.target.head_dim)

    def _keys_values(self, inputs: Tensor, first_position: int) -> tuple[Tensor, Tensor]:
        attention = self.midlayer.self_attn
        return self._turn(self._heads(attention.k_proj(inputs)), first_position), self._heads(attention.v_proj(inputs))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, heads, columns, dim)."""
        return x.view(*x.shape[:2], -1, self.spec.target.head_dim).transpose(1, 2)

    def _turn(self, heads: Tensor, first_position: int) -> Tensor:
        return turn(heads, first_position, self.get_buffer("frequencies"))

    def _finish(self, state: Tensor, queries: Tensor, seen: Seen, starts: Tensor) -> Tensor:
        """Attention, residuals and MLP."""
        x = state + self.midlayer.self_attn.o_proj(attend(queries, seen, starts))
        return x + self.midlayer.mlp(self.midlayer.post_attention_layernorm(x))


def turn(heads: Tensor, first_position: int, frequencies: Tensor) -> Tensor:
    """Rotary embedding [su21] of (..., columns, dim) from a position on, angles in float32."""
    positions = torch.arange(first_position, first_position + heads.shape[-2], device=heads.device)
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    a, b = heads.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attend(queries: Tensor, seen: Seen, starts: Tensor) -> Tensor:
    """Attention of the last A columns: over step 0 up to the own column, and over the own column's later steps.

    queries (B, heads, A, dim), scaled already; columns before `starts` (B) are padding. Returns (B, A, heads * dim).
    """
    batch, num_heads, num_answers, dim = queries.shape
    num_kv, columns = seen.keys.shape[1:3]
    # Query heads that share keys lie one after the other: (B, kv_heads, group * A, dim), without copies of the keys.
    grouped = queries.reshape(batch, num_kv, -1, dim)
    scores = (grouped @ seen.keys.transpose(-1, -2)).view(batch, num_heads, num_answers, columns)
    scores = scores + _bias(columns, num_answers, starts, scores.dtype)
    by_group = queries.view(batch, num_kv, -1, num_answers, dim)
    own = [(by_group * keys[:, :, None]).sum(-1).flatten(1, 2)[..., None].to(scores.dtype) for keys in seen.own_keys]
    with torch.autocast("cpu", enabled=False):  # it would widen the largest tensors of the layer
        weights = torch.softmax(torch.cat((scores, *own), dim=-1), dim=-1)
    block = weights[..., :columns].reshape(batch, num_kv, -1, columns)
    out = (block @ seen.values).view(batch, num_kv, -1, num_answers, dim)
    for i, values in enumerate(seen.own_values):
        share = weights[..., columns + i].view(batch, num_kv, -1, num_answers, 1)
        out = out + share * values[:, :, None]
    return out.reshape(batch, num_heads, num_answers, dim).transpose(1, 2).flatten(2)


def _bias(columns: int, num_answers: int, starts: Tensor, dtype: torch.dtype) -> Tensor:
    """What hides later columns and padding (B, 1, A, T). A padding column sees itself: no row is without a key."""
    key = torch.arange(columns, device=starts.device)
    query = key[columns - num_answers :, None]
    is_hidden = ((key > query) | (key < starts[:, None, None])) & (key != query)
    bias = torch.zeros(is_hidden.shape, dtype=dtype, device=starts.device)
    return bias.masked_fill_(is_hidden, float("-inf"))[:, None]
