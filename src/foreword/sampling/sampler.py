"""How one request draws its tokens: which distribution, which noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.sampling.noise import Stream, row_key
from foreword.sampling.params import Warp
from foreword.sampling.warp import NO_TOKEN, draw, not_numbers


@dataclass(frozen=True)
class Draw:
    """Sample one token after a node of a pass."""

    node: int  # index in the packed batch
    warp: Warp
    key: int  # row key of the noise; 0 when greedy, which uses none


@runtime_checkable
class ProcessorChain(Protocol):
    """Logits processor: changes logits by the tokens before a node, before the warp: bias, grammars, penalties."""

    def __call__(
        self, logits: Float[Tensor, " vocab"], token_ids: Sequence[int], prompt_len: int
    ) -> Float[Tensor, " vocab"]:
        """New logits (the argument stays as it is) after `token_ids`: prompt, answer and the node's own path."""
        ...


@dataclass(frozen=True)
class Sampler:
    """Sampling state of a request. The batch index never enters."""

    warp: Warp
    seed: int
    sample_index: int = 0
    processor: ProcessorChain | None = None

    def choose(self, logits: Float[Tensor, " vocab"], token_ids: Sequence[int], prompt_len: int) -> int:
        """The token sampled after `token_ids`, with their logits processors; `CheckpointError` where the logits are not numbers."""
        token = draw(self.shape(logits, token_ids, prompt_len), self.warp, self.key(len(token_ids)))
        if token == NO_TOKEN:
            raise not_numbers()
        return token

    def shape(
        self, logits: Float[Tensor, " vocab"], token_ids: Sequence[int], prompt_len: int
    ) -> Float[Tensor, " vocab"]:
        """Logits as the warp sees them."""
        return logits if self.processor is None else self.processor(logits, token_ids, prompt_len)

    def key(self, position: int, stream: Stream = Stream.TARGET) -> int:
        """Row key of the noise for the token at `position`."""
        return 0 if self.warp.is_greedy else row_key(self.seed, self.sample_index, stream, position)

    def step_key(self, stream: Stream, root_position: int, node: int, step: int = 0) -> int:
        """Row key of noise that serves once: for one node of one step, never again at the same position.

        `root_position` is that of the last committed token; every step has another one, so it names the step too. A
        decision that looks past the tokens it keeps (block verification does) leaves the noise of later positions
        conditioned on what it saw: met again in the next step, it would bias the output.
        """
        return row_key(self.seed, self.sample_index, stream, root_position, step, node)

    def draw_after(self, node: int, node_position: int) -> Draw:
        """Draw the token that follows `node`, which stands at `node_position`."""
        return Draw(node, self.warp, self.key(node_position + 1))
