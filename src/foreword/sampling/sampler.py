"""How one request draws its tokens: which distribution, which noise."""

from dataclasses import dataclass

from foreword.sampling.noise import Stream, row_key
from foreword.sampling.params import Warp


@dataclass(frozen=True)
class Draw:
    """Draw one token after a node of a pass."""

    node: int  # index in the packed batch
    warp: Warp
    key: int  # row key of the noise; 0 when greedy, which uses none


@dataclass(frozen=True)
class Sampler:
    """The drawing side of a request's options. The batch index never enters."""

    warp: Warp
    seed: int
    sample_index: int = 0

    def key(self, position: int, stream: Stream = Stream.TARGET) -> int:
        """Row key of the noise for the token that will stand at `position`."""
        return 0 if self.warp.is_greedy else row_key(self.seed, self.sample_index, stream, position)

    def draw_after(self, node: int, node_position: int) -> Draw:
        """Draw the token that follows `node`, which stands at `node_position`."""
        return Draw(node, self.warp, self.key(node_position + 1))
