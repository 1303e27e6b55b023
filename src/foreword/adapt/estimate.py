"""Formulas of speculation, without running a model.

Notation, as in the papers: `alpha` is the probability that a drafted token is accepted (taken as independent), `k` the tokens
drafted per step, `c` the time of one draft step over that of one target pass.

    expected tokens per step   E = 1 + alpha + ... + alpha^k                       [leviathan23]
    speed-up                 S = E / (v + k c),  v = T(k + 1) / T(1), 1 where memory decides

and of one device: a pass reads every weight once, whatever its width, so it is bound by memory until the tokens in
flight reach the ridge, where arithmetic takes as long as reading.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foreword.errors import ConfigError

MOST_DRAFTED = 40  # where `best_k` stops looking


@dataclass(frozen=True)
class Device:
    """What a processor can do at best."""

    name: str
    flops_per_s: float  # dense, in the precision that it multiplies in
    bytes_per_s: float  # from memory

    @property
    def ridge(self) -> float:
        """Operations per byte at which arithmetic takes as long as reading."""
        return self.flops_per_s / self.bytes_per_s


# Data sheets: dense bfloat16 of the tensor units, memory bandwidth. The last is what two desktop memory channels give.
DEVICES: tuple[Device, ...] = (
    Device("A100 80G", 312e12, 2.04e12),
    Device("H100 SXM", 989e12, 3.35e12),
    Device("H200", 989e12, 4.8e12),
    Device("RTX 4090", 165e12, 1.01e12),
    Device("RTX 3090", 71e12, 0.94e12),
    Device("desktop CPU", 1e12, 80e9),
)


@dataclass(frozen=True)
class PassEstimate:
    """One pass of a model on a device, a lower bound from its limits."""

    bytes_read: float
    flops: float
    seconds: float
    utilisation: float  # share of the device's arithmetic that is used
    is_memory_bound: bool


def expected_tokens(alpha: float, k: int) -> float:
    """Mean tokens emitted a step: the accepted ones and the one of the target's own [leviathan23]."""
    _check(alpha, k)
    return float(k + 1) if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def speed_up(alpha: float, c: float, k: int, verify_cost: float = 1.0) -> float:
    """Times faster than plain decoding [leviathan23, theorem 3.8].

    `verify_cost` is T(k + 1) / T(1), what a pass over the draft costs in plain passes; the paper takes it as 1.
    """
    if not 0 <= c < math.inf or not 0 < verify_cost < math.inf:
        raise ConfigError(
            f"c is {c:g} and the verify cost {verify_cost:g}; allowed: finite numbers, c 0 or above and the cost above 0"
        )
    return expected_tokens(alpha, k) / (verify_cost + k * c)


def best_k(alpha: float, c: float, verify_costs: Sequence[float] = (), most: int = MOST_DRAFTED) -> tuple[int, float]:
    """The number of drafted tokens that is fastest, and its speed-up; (0, 1) where plain decoding is.

    `verify_costs[k]` is T(k + 1) / T(1); 1 where it is not given.
    """
    options = [(0, 1.0)]
    for k in range(1, min(most, len(verify_costs) - 1 if verify_costs else most) + 1):
        options.append((k, speed_up(alpha, c, k, verify_costs[k] if verify_costs else 1.0)))
    return max(options, key=lambda option: (option[1], -option[0]))


def operations_factor(alpha: float, c_flops: float, k: int) -> float:
    """Arithmetic of speculation over that of plain decoding [leviathan23, theorem 3.11]; `c_flops`: draft over target."""
    return (k * c_flops + k + 1) / expected_tokens(alpha, k)


def tree_expected_tokens(parents: Sequence[int], edge_probs: Sequence[float]) -> float:
    """Mean tokens per step of a draft tree: the sum over nodes of the product along the path [medusa24].

    Node 0 is the root (its parent is -1 and its probability is not used); parents come before their children.
    """
    if len(parents) != len(edge_probs) or not parents or parents[0] != -1:
        raise ConfigError("a tree needs one probability per node, and -1 as the parent of node 0")
    reached = [1.0]
    for node, (parent, prob) in enumerate(zip(parents[1:], edge_probs[1:], strict=True), 1):
        if not 0 <= parent < node or not 0 <= prob <= 1:
            raise ConfigError(
                f"node {node} has parent {parent} and probability {prob:g}; allowed: an earlier node, 0 to 1"
            )
        reached.append(reached[parent] * prob)
    return sum(reached)


def effective_overhead(tokens_per_step: float, measured_speed_up: float) -> float:
    """What a step cost beyond one plain pass, in plain passes: from a report's two figures."""
    return tokens_per_step / measured_speed_up - 1


def estimate_pass(
    num_parameters: float, bits: float, device: Device, num_tokens: int = 1, kv_bytes: float = 0.0
) -> PassEstimate:
    """One pass over `num_tokens` tokens: two operations per weight and token, every weight and cached value read once."""
    if num_parameters <= 0 or bits <= 0 or num_tokens < 1:
        raise ConfigError(
            f"{num_parameters:g} parameters of {bits:g} bits and {num_tokens} tokens; allowed: all of them above 0"
        )
    bytes_read = num_parameters * bits / 8 + kv_bytes
    flops = 2 * num_parameters * num_tokens
    read_s, compute_s = bytes_read / device.bytes_per_s, flops / device.flops_per_s
    seconds = max(read_s, compute_s)
    return PassEstimate(bytes_read, flops, seconds, compute_s / seconds, read_s >= compute_s)


def ridge_tokens(bits: float, device: Device) -> float:
    """Tokens per pass at which it stops being bound by memory: up to there drafted tokens cost nothing."""
    return device.ridge * bits / 16


def _check(alpha: float, k: int) -> None:
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha is {alpha:g}; allowed: 0 to 1, the share of drafted tokens that is accepted")
    if k < 0:
        raise ConfigError(f"k is {k}; allowed: 0 or above")
