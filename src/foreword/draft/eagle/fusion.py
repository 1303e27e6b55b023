"""How a feature and a token become what the EAGLE layer reads.

EAGLE-3      g = fc(low, middle, high stream of the target); the layer itself joins g with the token's embedding.
             A state of its own takes the place of g without passing through fc [eagle3].
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

    def begin(self, features: Float[Tensor, "n width"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """From the target's features, each with the token after it."""
        ...

    def go_on(self, states: Float[Tensor, "n hidden"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """From the layer's own output, each with the token drafted after it."""
        ...


@final
class StreamFusion:
    """EAGLE-3: `fc` over the concatenated streams."""

    def __init__(self, fc: Projection) -> None:
        self._fc = fc

    def begin(self, features: Float[Tensor, "n width"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """The fused streams."""
        return self._fc(features)

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

    def __init__(self, fc: Projection, embedding: Float[Tensor, "vocab hidden"]) -> None:
        self._fc, self._embedding = fc, embedding

    def begin(self, features: Float[Tensor, "n width"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """Embedding and feature as one."""
        ids = torch.tensor(token_ids, device=self._embedding.device)
        embedded = self._embedding[ids].to(features.device, features.dtype)
        return self._fc(torch.cat((embedded, features), dim=-1))

    def go_on(self, states: Float[Tensor, "n hidden"], token_ids: Sequence[int]) -> Float[Tensor, "n hidden"]:
        """The same, of the guessed feature."""
        return self.begin(states, token_ids)
