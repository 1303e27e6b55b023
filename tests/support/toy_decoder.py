"""A causal model small enough to know by heart, with a real cache: an exact stand-in for a decoder in engine tests.

Its logits are a fixed random function of the last three tokens *as the cache and the tree show them* and of the position, in
float64 rounded to float32. A wrong position, a leaked sibling, a dropped row that stays: each changes the function's argument and
so the tokens. Width, batch and neighbours cannot change a bit, so equality with plain decoding is exact.
"""

import hashlib

import numpy as np
import torch

from foreword.config import ModelSpec
from foreword.runtime.base import Need, PassOutput
from foreword.sampling.sampler import Draw
from foreword.sampling.warp import draw
from foreword.tree.pack import PackedBatch

CONTEXT = 3


def toy_spec(vocab_size: int = 12, context_len: int = 4096, num_layers: int = 1) -> ModelSpec:
    return ModelSpec(
        family="llama", hidden_size=8, intermediate_size=8, num_layers=num_layers,
        num_heads=2, num_kv_heads=1, head_dim=4, vocab_size=vocab_size, context_len=context_len,
    )  # fmt: skip


class ToyCache:
    """Regions of (token, position) rows, of a byte each; row length + i is node i's scratch."""

    def __init__(self) -> None:
        self.regions: dict[int, list[tuple[int, int]]] = {}
        self.lengths: dict[int, int] = {}
        self.capacities: dict[int, int] = {}
        self._next = 0

    def open(self, capacity: int) -> int:
        self._next += 1
        self.regions[self._next], self.lengths[self._next], self.capacities[self._next] = [], 0, capacity
        return self._next

    def fork(self, slot: int, length: int, capacity: int) -> int:
        assert length <= self.lengths[slot]
        forked = self.open(capacity)
        self.regions[forked], self.lengths[forked] = self.regions[slot][:length], length
        return forked

    def close(self, slot: int) -> None:
        del self.regions[slot], self.lengths[slot], self.capacities[slot]

    def reserve(self, slot: int, capacity: int) -> None:
        if capacity > self.capacities[slot]:
            self.capacities[slot] = max(capacity, self.capacities[slot] * 3 // 2)

    def length(self, slot: int) -> int:
        return self.lengths[slot]

    def commit(self, slot: int, path) -> None:
        length, region = self.lengths[slot], self.regions[slot]
        self.regions[slot] = region[:length] + [region[length + node] for node in path]
        self.lengths[slot] = length + len(path)

    def truncate(self, slot: int, length: int) -> None:
        self.regions[slot] = self.regions[slot][:length]
        self.lengths[slot] = length

    def rows(self, slot: int):
        rows = torch.tensor(self.regions[slot][: self.lengths[slot]], dtype=torch.float32)
        return rows[:, 0].reshape(1, 1, -1, 1), rows[:, 1].reshape(1, 1, -1, 1)

    @property
    def num_open(self) -> int:
        return len(self.regions)

    @property
    def num_bytes(self) -> int:
        return sum(self.capacities.values())

    def region_bytes(self, capacity: int) -> int:
        return capacity


class ToyDecoder:
    """Satisfies `runtime.base.Decoder`. Two of equal arguments are the same model."""

    has_own_threads = False

    num_weight_bytes = 0

    def __hash__(self) -> int:
        return hash((type(self), self.spec, self.seed, self.sharpness))

    def __eq__(self, other) -> bool:
        return hash(self) == hash(other)

    def __init__(
        self,
        vocab_size: int = 12,
        seed: int = 0,
        sharpness: float = 3.0,
        context_len: int = 4096,
        num_layers: int = 1,
    ) -> None:
        self.spec = toy_spec(vocab_size, context_len, num_layers)
        self.seed, self.sharpness = seed, sharpness
        self.num_passes = 0
        self._shallow: dict[int, ToyDecoder] = {}
        self._rows: dict[tuple, torch.Tensor] = {}
        self._choices: dict[tuple, int] = {}

    def new_cache(self) -> ToyCache:
        return ToyCache()

    def first_layers(self, num_layers: int) -> "ToyDecoder":
        """Not so deep a thinker: the same function blurred by another one, on the same caches."""
        if num_layers not in self._shallow:
            self._shallow[num_layers] = BlurredDecoder(self, 0.25)
        return self._shallow[num_layers]

    def logits_after(self, tokens, position: int) -> torch.Tensor:
        """The model itself: logits after `tokens`, whose last one stands at `position`."""
        key = (tuple(tokens[-CONTEXT:]), position % 5)
        if key not in self._rows:
            digest = hashlib.blake2b(repr((self.seed, key)).encode(), digest_size=8).digest()
            rng = np.random.default_rng(int.from_bytes(digest, "little"))
            self._rows[key] = torch.tensor(rng.normal(size=self.spec.vocab_size) * self.sharpness, dtype=torch.float32)
        return self._rows[key]

    def _drawn(self, row: torch.Tensor, draw_: Draw) -> int:
        key = (id(row), draw_.warp, draw_.key)  # rows live as long as the model: their ids are their names
        if key not in self._choices:
            self._choices[key] = draw(row, draw_.warp, draw_.key)
        return self._choices[key]

    def forward(self, batch: PackedBatch, cache: ToyCache, need: Need, inputs=None) -> PassOutput:
        self.num_passes += 1
        rows = [torch.empty(0)] * batch.num_nodes
        for r, slot in enumerate(batch.slots):
            start, end = batch.starts[r], batch.starts[r + 1]
            length = cache.lengths[slot]
            assert batch.kv_lens[r] == length, f"{batch.kv_lens[r] = } but {length} rows are committed"
            assert length + end - start <= cache.capacities[slot], "no room was reserved"
            committed = cache.regions[slot][:length]
            scratch = list(zip(batch.token_ids[start:end].tolist(), batch.positions[start:end].tolist(), strict=True))
            cache.regions[slot] = committed + scratch
            parents = batch.local_parents(r)
            for node in range(end - start):
                path, n = [], node
                while n >= 0:
                    path.append(scratch[n][0])
                    n = parents[n]
                visible = [t for t, _ in committed[-CONTEXT:]] + path[::-1]
                rows[start + node] = self.logits_after(visible, scratch[node][1])
        logits = torch.stack([rows[n] for n in need.logits]) if len(need.logits) else None
        choices = [self._drawn(rows[d.node], d) for d in need.draws]
        top_ids = top_logprobs = None
        if need.top_k:
            stacked = torch.log_softmax(torch.stack([rows[n] for n in need.top_nodes]), -1)
            top_logprobs, top_ids = stacked.topk(need.top_k)
        return PassOutput(choices=choices, logits=logits, top_ids=top_ids, top_logprobs=top_logprobs)


class BlurredDecoder(ToyDecoder):
    """Mostly of another decoder's mind: its logits and a share of those of a third. Drafts with middling success."""

    def __init__(
        self, other: ToyDecoder, blur: float, vocab_size: int | None = None, context_len: int | None = None
    ) -> None:
        super().__init__(
            vocab_size or other.spec.vocab_size,
            other.seed + 1000,
            other.sharpness * blur,
            context_len or other.spec.context_len,
        )
        self.other = other

    def logits_after(self, tokens, position: int) -> torch.Tensor:
        key = ("blurred", tuple(tokens[-CONTEXT:]), position % 5)
        if key not in self._rows:
            size = self.spec.vocab_size
            theirs = torch.zeros(size)
            known = self.other.logits_after(tokens, position)[:size]
            theirs[: len(known)] = known
            self._rows[key] = super().logits_after(tokens, position) + theirs
        return self._rows[key]
