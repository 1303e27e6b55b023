"""How a feature and a token become what the EAGLE layer reads.

EAGLE-3      g = fc(low, middle, high stream of the target); the layer itself joins g with the token's embedding.
             A state of its own takes the place of g without passing through fc [eagle3]. Some networks norm the
             streams before fc: all as one (`norm_before_fc`), or each of them (`fc_norm`).
EAGLE-1/2    fc(embedding of the token, feature), whether the feature is the target's or its own guess [eagle24].
"""

from collections.abc import Sequence
from typing import Protocol, final

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.runtime.base import Projection


class Fusion(Protocol):
    """Makes the decoder's `inputs`."""

    keeps_states: bool  # `go_on` hands the states back as they are

    def begin(self, features: Float[Tensor, "n width"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """From the target's features, each with the token after it."""
        ...

    def go_on(self, states: Float[Tensor, "n hidden"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """From the layer's own output, each with the token drafted after it."""
        ...


@final
class StreamNorms:
    """RMS norms of neighbouring parts of each row; the bits of a row do not depend on the others.

    Args:
        weights: of each part, as long as it.
        eps: added to the mean square.
    """

    def __init__(self, weights: Sequence[Float[Tensor, " part"]], eps: float) -> None:
        self._sizes, self._eps = [len(weight) for weight in weights], eps
        self._weight = torch.cat([weight.float() for weight in weights])

    def __call__(self, features: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        """Normed, in the dtype of the features; computed in float32 at least."""
        wide = features if features.dtype == torch.float64 else features.float()
        self._weight = self._weight.to(wide.device)
        parts = wide.split(self._sizes, dim=-1)
        normed = [part / torch.sqrt(_sums(part * part) / part.shape[-1] + self._eps) for part in parts]
        return (torch.cat(normed, dim=-1) * self._weight).to(features.dtype)


def _sums(rows: Float[Tensor, "n width"]) -> Float[Tensor, "n 1"]:
    """Of each row, halves added until one value is left: a library's sum may take another order over more rows."""
    while (width := rows.shape[-1]) > 1:
        half = width // 2
        added = rows[:, :half] + rows[:, half : 2 * half]
        rows = added if width % 2 == 0 else torch.cat((added, rows[:, -1:]), dim=-1)
    return rows


@final
class StreamFusion:
    """EAGLE-3: `fc` over the concatenated streams, normed before where the network has norms for them."""

    keeps_states = True

    def __init__(self, fc: Projection, norms: StreamNorms | None = None) -> None:
        self._fc, self._norms = fc, norms

    def begin(self, features: Float[Tensor, "n width"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """The fused streams."""
        return self._fc(features if self._norms is None else self._norms(features))

    def go_on(self, states: Float[Tensor, "n hidden"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """The states as they are."""
        return states


@final
class TokenFusion:
    """EAGLE-1 and 2: `fc` over embedding and feature.

    Args:
        fc: from [embedding, feature] to the layer's input.
        embedding: the target's, (vocab, hidden).
    """

    keeps_states = False

    def __init__(self, fc: Projection, embedding: Float[Tensor, "vocab hidden"]) -> None:
        self._fc, self._embedding = fc, embedding

    def begin(self, features: Float[Tensor, "n width"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """Embedding and feature as one."""
        ids = torch.tensor(token_ids, device=self._embedding.device)
        embedded = self._embedding[ids].to(features.device, features.dtype)
        return self._fc(torch.cat((embedded, features), dim=-1))

    def go_on(self, states: Float[Tensor, "n hidden"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """The same, of the predicted feature."""
        return self.begin(states, token_ids)
