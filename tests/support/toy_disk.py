"""A toy whose rows can be saved: eight bytes a row, its token and its position."""

import numpy as np

from tests.support.toy_decoder import ToyCache, ToyDecoder

ROW_BYTES = 8


class SavableToyCache(ToyCache):
    """Satisfies `runtime.base.SavableCache`."""

    layout = "toy"

    def save_rows(self, slot: int, first: int, count: int) -> np.ndarray:
        assert 0 <= first <= first + count <= self.lengths[slot]
        return np.array(self.regions[slot][first : first + count], dtype=np.int32).reshape(-1).view(np.uint8)

    def load_rows(self, slot: int, rows: np.ndarray) -> None:
        held = self.regions[slot][: self.lengths[slot]]
        loaded = [(token, position) for token, position in rows.view(np.int32).reshape(-1, 2).tolist()]
        assert [position for _, position in loaded] == list(range(len(held), len(held) + len(loaded)))
        assert len(held) + len(loaded) <= self.capacities[slot], "no room was reserved"
        self.regions[slot], self.lengths[slot] = held + loaded, len(held) + len(loaded)

    @property
    def num_bytes(self) -> int:
        return sum(self.region_bytes(capacity) for capacity in self.capacities.values())

    def region_bytes(self, capacity: int) -> int:
        return capacity * ROW_BYTES


class SavableToyDecoder(ToyDecoder):
    """The toy, with such a cache."""

    def new_cache(self) -> SavableToyCache:
        return SavableToyCache()
