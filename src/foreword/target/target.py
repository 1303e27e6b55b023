"""The model whose output is wanted: a decoder and the KV cache of its requests."""

from collections.abc import Callable, Sequence
from typing import final

from foreword.config import ModelSpec
from foreword.runtime.base import Decoder, KVCache, Need, PassOutput
from foreword.target.load_model import LoadedModel
from foreword.tree.pack import PackedBatch


@final
class Target:
    """Runs passes and keeps what was agreed on.

    Args:
        decoder: the model.
        model: where it came from, for drafters that load something beside it; None where it was built by hand.
    """

    def __init__(self, decoder: Decoder, model: LoadedModel | None = None) -> None:
        self.decoder, self.model = decoder, model
        self.cache: KVCache = decoder.new_cache()
        self.reserve: Callable[[int, int], None] = self.cache.reserve  # an engine puts its memory budget here

    @property
    def spec(self) -> ModelSpec:
        """What the model is."""
        return self.decoder.spec

    def forward(self, batch: PackedBatch, need: Need) -> PassOutput:
        """Read all nodes once; nothing is committed yet."""
        for request, slot in enumerate(batch.slots):
            num_nodes = batch.starts[request + 1] - batch.starts[request]
            self.reserve(slot, batch.kv_lens[request] + num_nodes)
        return self.decoder.forward(batch, self.cache, need)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the rows of `path`, drop the rest of the pass."""
        self.cache.commit(slot, path)
