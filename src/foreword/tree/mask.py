"""From parents to the attention mask."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool


def ancestor_mask(parents: Sequence[int]) -> Bool[np.ndarray, "nodes nodes"]:
    """True where the row's node may attend to the column's: itself and its ancestors, nothing else.

    Siblings never see each other. One pass, since parents point backwards: a row is its parent's row and itself.
    """
    num_nodes = len(parents)
    mask = np.zeros((num_nodes, num_nodes), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] = mask[parent]
        mask[node, node] = True
    return mask
